"""Engines that connect to us: a listening socket for each rank's port, told apart by the topic of what they send.

vLLM's publisher binds where its address has a ``*`` or ``::``, and connects to any other; rank r of an engine connects
to a port that is r higher. So rank r of every engine is heard on our own port + r, and there by its topic, whole.

Rules: nobody can tell whose a connection is before it has spoken, or after it was lost and has not spoken again: then
all that are not known to be connected are told that they may be. Of two connections that speak with one topic the later
one counts: the earlier is what a restart has left over, or somebody's mistake, and is logged. What waits for a reader
is bounded; what comes beyond is dropped, and asked for again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from gateway.framework import Observer, TaskSet
from gateway.kvcache.pace import TOGETHER, Pace
from gateway.kvcache.sockets import QUEUE, Bell, Change, Inlet, Ready, open_monitor, open_socket

log = logging.getLogger("kvgate.kvcache")

WAITING = 1_000
"""Messages that may wait for a reader: some 10 MB of a busy engine's, and more seconds than a replay takes."""

WAITING_BYTES = 64 * 1024 * 1024
"""Bytes likewise, the last message beside."""

STRANGERS = 100
"""Topics that nobody has, of which each is logged once; more are only counted."""

CHANGES = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class Line:
    """The inlet of one reader."""

    def __init__(self) -> None:
        self._items: deque[Change | list[bytes]] = deque()
        self._bytes = 0
        self._lost = False
        self.bell = Bell()

    def put(self, item: Change | list[bytes]) -> None:
        if not isinstance(item, Change):
            if len(self._items) >= WAITING or self._bytes >= WAITING_BYTES:
                self._lost = True
                return
            self._bytes += sum(map(len, item))
        elif item is Change.PERHAPS and self._items and self._items[-1] is item:
            return
        self._items.append(item)
        self.bell.ring()

    def take(self) -> Change | list[bytes] | None:
        if self._items:
            item = self._items.popleft()
            if not isinstance(item, Change):
                self._bytes -= sum(map(len, item))
            return item
        if self._lost:
            self._lost = False
            return Change.PERHAPS
        return None


@dataclass(slots=True, eq=False)
class Voice:
    """What comes with one topic to one port. ``connection``: on which, None if it is lost or was never heard.
    ``lines``: one for each model that is served there. ``doubled``: it was logged that two have the topic."""

    connection: int | None = None
    lines: list[Line] = field(default_factory=list)
    doubled: bool = False

    def put(self, item: Change | list[bytes]) -> None:
        for line in self.lines:
            line.put(item)


@dataclass(frozen=True, slots=True)
class Expected:
    """An engine that connects to ``intake``, to the port ``offset`` above its first, and sends with ``topic``."""

    intake: Intake
    topic: str
    offset: int = 0

    @contextlib.contextmanager
    def open(self) -> Iterator[Inlet]:
        port, line = self.intake.port(self.offset), Line()
        voice = port.voices.setdefault(self.topic.encode(), Voice())
        line.put(Change.PERHAPS if voice.connection is None else Change.CONNECTED)
        voice.lines.append(line)
        try:
            yield line
        finally:
            voice.lines.remove(line)

    def __str__(self) -> str:
        return f"{self.intake.address_of(self.offset)}, topic {self.topic!r}"


class Intake:
    """Listens from ``start`` to ``close``, on the first port at once and on others when they are asked for.

    ``address``: of the first rank's socket, ``tcp://HOST:PORT`` (port 0: any). ``topics``: that will be asked for, and
    are no strangers before. ``strangers``: topics that nobody has, as far as they were logged.
    """

    def __init__(self, address: str, topics: Collection[str], observer: Observer) -> None:
        self.address = address
        self.strangers: set[bytes] = set()
        self._topics: set[bytes] = set()
        self._observer = observer
        self._ports: dict[int, Port] = {}
        self._pace: Pace | None = None
        self._tasks = TaskSet()

        self.expect(topics)

    def expect(self, topics: Collection[str]) -> None:
        """Other topics will be asked for from now on."""
        self._topics = {topic.encode() for topic in topics}

    def start(self, pace: Pace | None = None) -> None:
        """Listen. ``pace``: at which messages are looked at; None: each as it comes. Raises zmq.ZMQError."""
        self._pace = pace
        host, _, port = self.address.rpartition(":")
        bound = self.port(0).address
        self.address = f"{host}:{bound.rpartition(':')[2]}" if port == "0" else self.address

    async def close(self) -> None:
        """Harmless if it never started."""
        await self._tasks.close()
        for port in self._ports.values():
            port.close()
        self._ports.clear()

    def port(self, offset: int) -> Port:
        """The socket of those that connect to the port ``offset`` above the first. Raises zmq.ZMQError."""
        if offset not in self._ports:
            port = self._ports[offset] = Port(self, self.address_of(offset), self._pace)
            self._tasks.start(port.run(), name=f"KV events that come to {port.address}")
        return self._ports[offset]

    def address_of(self, offset: int) -> str:
        host, _, port = self.address.rpartition(":")
        return f"{host}:{int(port) + offset}"

    def stranger(self, topic: bytes, port: Port) -> None:
        """Something came with a topic that nobody has."""
        if topic in self._topics:
            return  # its endpoint is not known yet, or not any more
        self._observer.kv_events("", "unknown-topic", 1)
        if topic in self.strangers or len(self.strangers) >= STRANGERS:
            return
        self.strangers.add(topic)
        log.warning("KV events with the topic %r come to %s, which no endpoint has", _shown(topic), port.address)

    def doubled(self, topic: bytes, port: Port, *, first: bool) -> None:
        """An earlier connection goes on to speak beside a later one."""
        self._observer.kv_events("", "doubled-topic", 1)
        if first:
            shown = _shown(topic)
            log.error("KV events with the topic %r come to %s from two engines: one is not heard", shown, port.address)


class Port:
    """One listening socket, at ``address``. ``voices``: by topic. Raises zmq.ZMQError if it cannot be bound."""

    def __init__(self, intake: Intake, address: str, pace: Pace | None) -> None:
        self.voices: dict[bytes, Voice] = {}
        self._intake = intake
        # Of each connection that is alive, by file descriptor: how many were accepted before it.
        self._accepted: dict[int, int] = {}
        self._count = 0
        with contextlib.ExitStack() as stack:
            socket = stack.enter_context(open_socket(zmq.SUB))
            monitor = stack.enter_context(open_monitor(socket, CHANGES))
            socket.rcvhwm = QUEUE
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            socket.bind(address)
            self.address = str(socket.getsockopt_string(zmq.LAST_ENDPOINT))
            self._bell = Bell()
            self._messages, self._changes = Ready(socket, self._bell, pace), Ready(monitor, self._bell)
            stack.callback(self._messages.close)
            stack.callback(self._changes.close)
            self._stack = stack.pop_all()

    def close(self) -> None:
        self._stack.close()

    async def run(self) -> None:
        message = None
        while True:
            for _ in range(TOGETHER):  # each message may be for another follower
                if message is None:
                    message = self._messages.take_from()
                # A connection's changes come before what is heard on it: they are there by now, signalled or not.
                if (message is None or self._changes.is_there()) and (change := self._changes.take()):
                    self._changed(parse_monitor_message(change))
                elif message is not None:
                    self._heard(*message)
                    message = None
                else:
                    await self._bell.wait()
                    break
            await asyncio.sleep(0)

    def _changed(self, change: Any) -> None:
        kind, connection = change["event"], change["value"]
        if kind == zmq.EVENT_ACCEPTED:
            self._accepted[connection] = self._count
            self._count += 1
        elif kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            for voice in self.voices.values():
                if voice.connection is None:
                    voice.put(Change.PERHAPS)
        else:
            self._accepted.pop(connection, None)
            for voice in self.voices.values():
                if voice.connection == connection:
                    voice.connection = None
                    voice.put(Change.DISCONNECTED)

    def _heard(self, connection: int, frames: list[bytes]) -> None:
        topic = frames[0] if len(frames) > 2 else b""
        voice = self.voices.get(topic)
        if voice is None or not voice.lines:
            self._intake.stranger(topic, self)
            return
        if connection != voice.connection:
            number = self._accepted.get(connection, -1)  # what is left of a lost connection has none
            if voice.connection is not None and number < self._accepted[voice.connection]:
                if number >= 0:
                    self._intake.doubled(topic, self, first=not voice.doubled)
                    voice.doubled = True
                return
            if number >= 0:
                voice.connection = connection
                voice.put(Change.CONNECTED)
        voice.put(frames)


def _shown(topic: bytes) -> str:
    return topic[:200].decode(errors="replace")
