"""Engines that bind their sockets: one connection to each, which is made again whatever has ended it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import parse_monitor_message

from gateway.framework import LogLimit, SystemClock, left_out
from gateway.kvcache.events import MAX_MESSAGE
from gateway.kvcache.pace import Pace
from gateway.kvcache.sockets import QUEUE, Bell, Change, Inlet, Ready, open_monitor, open_socket

log = logging.getLogger("kvgate.kvcache")

RESUME = 5.0
"""Seconds until a connection is made again that libzmq has given up: its own longest pause."""

CHANGES = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED


@dataclass(frozen=True, slots=True)
class Subscription:
    """An engine that binds: we connect to ``address``, and hear the topics that begin with ``topic``. ``pace``: as
    ``Ready``'s, of its messages."""

    address: str
    topic: str = ""
    pace: Pace | None = None

    @contextlib.contextmanager
    def open(self) -> Iterator[Inlet]:
        with (
            open_socket(zmq.SUB) as subscriber,
            open_monitor(subscriber, CHANGES) as monitor,
            contextlib.ExitStack() as stack,
        ):
            subscriber.rcvhwm = QUEUE
            subscriber.setsockopt(zmq.SUBSCRIBE, self.topic.encode())
            subscriber.connect(self.address)
            bell = Bell()
            messages, changes = Ready(subscriber, bell, self.pace), Ready(monitor, bell)
            stack.callback(messages.close)
            stack.callback(changes.close)
            connection = _Connection(messages, changes, bell, lambda: self._again(subscriber))
            stack.callback(connection.close)
            yield connection

    def _again(self, subscriber: zmq.Socket[bytes]) -> None:
        with contextlib.suppress(zmq.ZMQError):  # it is gone already
            subscriber.disconnect(self.address)
        subscriber.connect(self.address)

    def __str__(self) -> str:
        return self.address


class _Connection:
    """The only connection of a subscriber. Its changes come before what is heard on it.

    libzmq makes it again when it was lost, but for one that it has closed for what came on it (too large a message, or
    no ZMTP): then ``again`` does.
    """

    def __init__(self, messages: Ready, changes: Ready, bell: Bell, again: Callable[[], None]) -> None:
        self.bell = bell
        self._again = again
        self._lost: asyncio.TimerHandle | None = None
        self._often = LogLimit(SystemClock())
        self._messages = messages
        self._changes = changes
        self._next: deque[Change | list[bytes]] = deque()
        self._was_all = False  # that had come, when it was received

    def take(self) -> Change | list[bytes] | None:
        if not self._next and not self._receive():
            return None
        return self._next.popleft()

    def _receive(self) -> bool:
        """Whether something was there."""
        if self._was_all:  # what has come since will be told
            self._was_all = False
            return False
        messages, _, was_all = self._messages.take_some()
        if messages:
            self._was_all = was_all
            # Whether one is signalled or not: what came before these messages must be there by now.
            self._changes.is_there()
        self._hear_changes()
        self._next += messages
        return bool(self._next)

    def _hear_changes(self) -> None:
        while change := self._changes.take():
            event = parse_monitor_message(change)["event"]
            self.close()
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._next.append(Change.CONNECTED)
            elif event == zmq.EVENT_DISCONNECTED:
                self._next.append(Change.DISCONNECTED)
                self._lost = asyncio.get_running_loop().call_later(RESUME, self._resume)

    def _resume(self) -> None:
        """libzmq has not said that it connects again."""
        self._changes.is_there()
        self._hear_changes()
        if self._lost is not None and self._lost.when() <= asyncio.get_running_loop().time():
            self._lost = None
            if (count := self._often.admit()) is not None:
                text = (
                    "KV events: a connection was closed for what came on it: no ZMTP, or a message of over %d bytes%s"
                )
                log.warning(text, MAX_MESSAGE, left_out(count))
            self._again()
            self._messages.peek()  # what was done with the socket may have taken a signal
        self.bell.ring()

    def close(self) -> None:
        """Connect no more; harmless when repeated."""
        if self._lost is not None:
            self._lost.cancel()
            self._lost = None
