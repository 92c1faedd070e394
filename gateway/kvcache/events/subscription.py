"""Subscribes to engines that bind their sockets: one connection to each, which is made again whatever has ended it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import parse_monitor_message

from gateway.core.clock import SystemClock
from gateway.core.log_limit import LogLimit, left_out
from gateway.kvcache.events.decode import MAX_MESSAGE
from gateway.kvcache.events.poller import Poller
from gateway.kvcache.events.sockets import QUEUE, Change, Inbox, MessageSocket, Signal, open_monitor, open_socket

log = logging.getLogger("kvgate.kvcache")

RESUME = 5.0
"""Seconds until a connection is made again that libzmq has given up: its own longest pause."""

CHANGES = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED


@dataclass(frozen=True, slots=True)
class Subscription:
    """An engine that binds: we connect to ``address``, and receive topics that begin with ``topic``. ``poller``: as
    ``MessageSocket``'s."""

    address: str
    topic: str = ""
    poller: Poller | None = None

    @contextlib.contextmanager
    def open(self) -> Iterator[Inbox]:
        with (
            open_socket(zmq.SUB) as subscriber,
            open_monitor(subscriber, CHANGES) as monitor,
            contextlib.ExitStack() as stack,
        ):
            subscriber.rcvhwm = QUEUE
            subscriber.setsockopt(zmq.SUBSCRIBE, self.topic.encode())
            subscriber.connect(self.address)
            signal = Signal()
            messages, changes = MessageSocket(subscriber, signal, self.poller), MessageSocket(monitor, signal)
            stack.callback(messages.close)
            stack.callback(changes.close)
            connection = _Connection(messages, changes, signal, lambda: self._reconnect(subscriber))
            stack.callback(connection.close)
            yield connection

    def _reconnect(self, subscriber: zmq.Socket[bytes]) -> None:
        with contextlib.suppress(zmq.ZMQError):  # libzmq has given it up already
            subscriber.disconnect(self.address)
        subscriber.connect(self.address)

    def __str__(self) -> str:
        return self.address


class _Connection:
    """The only connection of a subscriber. Its changes come before the messages that came on it.

    libzmq connects again when a connection was lost, but not when it has closed it for what came on it (too large a
    message, or no ZMTP): then ``reconnect`` does.
    """

    def __init__(
        self, messages: MessageSocket, changes: MessageSocket, signal: Signal, reconnect: Callable[[], None]
    ) -> None:
        self.signal = signal
        self._reconnect = reconnect
        self._lost: asyncio.TimerHandle | None = None
        self._often = LogLimit(SystemClock())
        self._messages = messages
        self._changes = changes
        self._next: deque[Change | list[bytes]] = deque()
        self._drained = False  # nothing was left when messages were last received

    def receive(self) -> Change | list[bytes] | None:
        if not self._next:
            if self._drained:  # what has come since will be signalled
                self._drained = False
                return None
            messages, _, drained = self._messages.receive_some()
            if not messages:
                self._receive_changes()
            else:
                self._drained = drained
                # Changes before these messages must be there by now, signalled or not.
                if self._changes.has_message():
                    self._receive_changes()
                self._next += messages
        return self._next.popleft() if self._next else None

    def _receive_changes(self) -> None:
        while change := self._changes.receive():
            event = parse_monitor_message(change)["event"]
            self.close()
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._next.append(Change.CONNECTED)
            elif event == zmq.EVENT_DISCONNECTED:
                self._next.append(Change.DISCONNECTED)
                self._lost = asyncio.get_running_loop().call_later(RESUME, self._resume)

    def _resume(self) -> None:
        """libzmq has not reported that it connects again."""
        self._changes.has_message()
        self._receive_changes()
        if self._lost is not None and self._lost.when() <= asyncio.get_running_loop().time():
            self._lost = None
            if (count := self._often.admit()) is not None:
                text = (
                    "KV events: a connection was closed for what came on it: no ZMTP, or a message of over %d bytes%s"
                )
                log.warning(text, MAX_MESSAGE, left_out(count))
            self._reconnect()
            self._messages.check()  # the calls on the socket may have reset its descriptor
        self.signal.set()

    def close(self) -> None:
        """Connect no more; harmless when repeated."""
        if self._lost is not None:
            self._lost.cancel()
            self._lost = None
