"""Subscribes to engines that bind their sockets: one connection to each, which is made again whatever has ended it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterator

import zmq
from zmq.utils.monitor import parse_monitor_message

from gateway.core.clock import SystemClock
from gateway.core.log_limit import LogLimit, left_out
from gateway.core.signal import Signal
from gateway.kvcache.events.decode import MAX_MESSAGE
from gateway.kvcache.events.poller import Poller
from gateway.kvcache.events.sockets import (
    QUEUE,
    Change,
    Inbox,
    Polled,
    WatchedSocket,
    open_monitor,
    open_socket,
    receive_some,
)

log = logging.getLogger("kvgate.kvcache")

RESUME = 5.0
"""Seconds until a connection is made again that libzmq has given up: its own longest pause."""

CHANGES = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED


class Subscription:
    """An engine that binds: we connect to ``address``, and receive topics that begin with ``topic``. ``poller``: says
    when messages have come. It is the inbox that it opens.

    A connection's changes come before the messages that came on it. libzmq connects again when a connection was lost,
    but not when it has closed it for what came on it (too large a message, or no ZMTP): then we do.
    """

    def __init__(self, address: str, topic: str, poller: Poller) -> None:
        self.signal = Signal()
        self.paused = False
        self._address = address
        self._topic = topic
        self._poller = poller
        self._polled: Polled = []
        self._changes: WatchedSocket | None = None
        self._next: deque[Change | list[bytes]] = deque()
        self._lost: asyncio.TimerHandle | None = None
        self._often = LogLimit(SystemClock())

    def __str__(self) -> str:
        return self._address

    @contextlib.contextmanager
    def open(self) -> Iterator[Inbox]:
        with open_socket(zmq.SUB) as subscriber, open_monitor(subscriber, CHANGES) as monitor:
            subscriber.rcvhwm = QUEUE
            subscriber.setsockopt(zmq.SUBSCRIBE, self._topic.encode())
            subscriber.connect(self._address)
            self._polled = [(subscriber, int(zmq.POLLIN))]
            self._changes = WatchedSocket(monitor, self.signal)
            self._next.clear()
            self._poller.add(subscriber, self)
            try:
                yield self
            finally:
                self._poller.remove(subscriber)
                self._changes.close()
                self._forget_loss()

    # for the reader

    def receive(self) -> Change | list[bytes] | None:
        if not self._next:
            messages, _ = receive_some(self._polled)
            self._receive_changes()  # what came before these messages must be there by now, signalled or not
            self._next += messages
        return self._next.popleft() if self._next else None

    # for the poller

    @property
    def idle(self) -> bool:
        return self.paused or self.signal.waited_for

    def wake(self) -> None:
        self.signal.set()

    # its own

    def _receive_changes(self) -> None:
        assert self._changes is not None
        while changes := self._changes.receive_some()[0]:
            for change in changes:
                event = parse_monitor_message(change)["event"]
                self._forget_loss()
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self._next.append(Change.CONNECTED)
                elif event == zmq.EVENT_DISCONNECTED:
                    self._next.append(Change.DISCONNECTED)
                    self._lost = asyncio.get_running_loop().call_later(RESUME, self._resume)

    def _resume(self) -> None:
        """libzmq has not reported that it connects again."""
        self._receive_changes()
        if self._lost is not None and self._lost.when() <= asyncio.get_running_loop().time():
            self._lost = None
            if (count := self._often.admit()) is not None:
                text = (
                    "KV events: a connection was closed for what came on it: no ZMTP, or a message of over %d bytes%s"
                )
                log.warning(text, MAX_MESSAGE, left_out(count))
            subscriber = self._polled[0][0]
            with contextlib.suppress(zmq.ZMQError):  # libzmq has given it up already
                subscriber.disconnect(self._address)
            subscriber.connect(self._address)
        self.signal.set()

    def _forget_loss(self) -> None:
        """The connection is made again, or not wanted any more."""
        if self._lost is not None:
            self._lost.cancel()
            self._lost = None
