"""Listens for engines that connect to us: one socket for each rank's port; the topic identifies the engine.

vLLM's publisher binds where its address has a ``*`` or ``::``, and connects to any other; rank r of an engine connects
to a port that is r higher. So rank r of every engine comes to our own port + r, with the engine's topic.

Rules: a connection's engine is not known before its first message. So when a connection is made, every publisher
without a connection is notified that it may be its own; and so is one that loses its own while there is a later one
that nothing has come on. If two connections have one topic, the later one counts: the earlier one is from before a
restart, or a mistake, and is logged. The queue of messages for a reader is bounded; messages beyond it are dropped, and
requested again by replay.
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

from gateway.core.observer import Observer
from gateway.core.signal import Signal
from gateway.core.tasks import TaskSet
from gateway.kvcache.events.poller import PER_TURN, Poller
from gateway.kvcache.events.sockets import (
    QUEUE,
    Change,
    Inbox,
    WatchedSocket,
    bind_shared,
    open_monitor,
    open_socket,
    receive,
)

log = logging.getLogger("kvgate.kvcache")

MAX_WAITING = 1_000
"""Messages that may wait for a reader: some 10 MB of a busy engine's, and more seconds than a replay takes."""

MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Bytes likewise, the last message beside."""

MAX_UNKNOWN = 100
"""Unknown topics of which each is logged once; more are only counted."""

CHANGES = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class InboxQueue:
    """The inbox of one reader."""

    def __init__(self) -> None:
        self._items: deque[Change | list[bytes]] = deque()
        self._bytes = 0
        self._lost = False
        self.signal = Signal()
        self.paused = False

    def put(self, item: Change | list[bytes]) -> None:
        if not isinstance(item, Change):
            if len(self._items) >= MAX_WAITING or self._bytes >= MAX_WAITING_BYTES:
                self._lost = True
                return
            self._bytes += sum(map(len, item))
        elif item is Change.UNCERTAIN and self._items and self._items[-1] is item:
            return
        self._items.append(item)
        self.signal.set()

    def receive(self) -> Change | list[bytes] | None:
        if self._items:
            item = self._items.popleft()
            if not isinstance(item, Change):
                self._bytes -= sum(map(len, item))
            return item
        if self._lost:
            self._lost = False
            return Change.UNCERTAIN
        return None


@dataclass(slots=True, eq=False)
class Publisher:
    """What comes with one topic to one port. ``connection``: file descriptor of the one it comes on; None if that is
    lost or not known yet. ``inboxes``: one for each model that is served there. ``duplicate_topic``: it was logged that
    two engines have the topic."""

    connection: int | None = None
    inboxes: list[InboxQueue] = field(default_factory=list)
    duplicate_topic: bool = False

    def put(self, item: Change | list[bytes]) -> None:
        for queue in self.inboxes:
            queue.put(item)


@dataclass(frozen=True, slots=True)
class ListenerSource:
    """An engine that connects to ``listener``, to the port ``offset`` above its first, and sends with ``topic``."""

    listener: EventListener
    topic: str
    offset: int = 0

    @contextlib.contextmanager
    def open(self) -> Iterator[Inbox]:
        port, queue = self.listener.port(self.offset), InboxQueue()
        publisher = port.publishers.setdefault(self.topic.encode(), Publisher())
        queue.put(Change.UNCERTAIN if publisher.connection is None else Change.CONNECTED)
        publisher.inboxes.append(queue)
        try:
            yield queue
        finally:
            publisher.inboxes.remove(queue)

    def __str__(self) -> str:
        return f"{self.listener.address_of(self.offset)}, topic {self.topic!r}"


class EventListener:
    """Listens from ``start`` to ``close``, on the first port at once and on others when they are asked for.

    ``address``: of the first rank's socket, ``tcp://HOST:PORT`` (port 0: any). ``topics``: of the engines that are
    configured. ``unknown_topics``: other topics that came, as far as they were logged.
    """

    def __init__(self, address: str, topics: Collection[str], observer: Observer) -> None:
        self.address = address
        self.unknown_topics: set[bytes] = set()
        self._topics: set[bytes] = set()
        self._observer = observer
        self._ports: dict[int, Port] = {}
        self._poller: Poller | None = None
        self.beside = False
        self._tasks = TaskSet()

        self.set_topics(topics)

    def set_topics(self, topics: Collection[str]) -> None:
        """Other engines are configured from now on."""
        self._topics = {topic.encode() for topic in topics}

    def start(self, poller: Poller, *, beside: bool = False) -> None:
        """Listen. ``poller``: says when messages have come. ``beside``: another process listens there still, which
        engines leave for this one when it no longer does (``release``). Raises zmq.ZMQError."""
        self._poller = poller
        self.beside = beside
        host, _, port = self.address.rpartition(":")
        bound = self.port(0).address
        self.address = f"{host}:{bound.rpartition(':')[2]}" if port == "0" else self.address

    async def release(self) -> None:
        """Listen no more: engines connect anew, to another process that listens there. Readers here hear nothing
        more."""
        await self._tasks.close()
        for port in self._ports.values():
            port.close()

    async def close(self) -> None:
        """Harmless if it never started."""
        await self.release()
        self._ports.clear()

    def port(self, offset: int) -> Port:
        """The socket of the port ``offset`` above the first. Raises zmq.ZMQError."""
        if offset not in self._ports:
            assert self._poller is not None, "it was started"
            port = self._ports[offset] = Port(self, self.address_of(offset), self._poller)
            self._tasks.start(port.run(), name=f"KV events that come to {port.address}")
        return self._ports[offset]

    def address_of(self, offset: int) -> str:
        host, _, port = self.address.rpartition(":")
        return f"{host}:{int(port) + offset}"

    def unknown_topic(self, topic: bytes, port: Port) -> None:
        """A message came with a topic that no endpoint has."""
        if topic in self._topics:
            return  # its endpoint is not registered yet, or not any more
        self._observer.kv_events("", "unknown-topic", 1)
        if topic in self.unknown_topics or len(self.unknown_topics) >= MAX_UNKNOWN:
            return
        self.unknown_topics.add(topic)
        log.warning("KV events with the topic %r come to %s, which no endpoint has", _shown(topic), port.address)

    def duplicate_topic(self, topic: bytes, port: Port, *, first: bool) -> None:
        """An earlier connection goes on to send beside a later one."""
        self._observer.kv_events("", "doubled-topic", 1)
        if first:
            shown = _shown(topic)
            log.error("KV events with the topic %r come to %s from two engines: one is not heard", shown, port.address)


class Port:
    """One listening socket, at ``address``. ``publishers``: by topic. Raises zmq.ZMQError if it cannot be bound."""

    def __init__(self, listener: EventListener, address: str, poller: Poller) -> None:
        self.publishers: dict[bytes, Publisher] = {}
        self._listener = listener
        # File descriptor of each live connection -> how many were accepted before it.
        self._accepted: dict[int, int] = {}
        self._count = 0
        with contextlib.ExitStack() as stack:
            socket = stack.enter_context(open_socket(zmq.SUB))
            monitor = stack.enter_context(open_monitor(socket, CHANGES))
            socket.rcvhwm = QUEUE
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            bind_shared(socket, address, beside=listener.beside)
            self.address = str(socket.getsockopt_string(zmq.LAST_ENDPOINT))
            self._signal = Signal()
            self._socket = socket
            self._polled = [(socket, int(zmq.POLLIN))]
            self._changes = WatchedSocket(monitor, self._signal)
            stack.callback(self._changes.close)
            poller.add(socket, self)
            stack.callback(poller.remove, socket)
            self._stack = stack.pop_all()

    def close(self) -> None:
        self._stack.close()

    # for the poller

    @property
    def idle(self) -> bool:
        return self._signal.waited_for and all(
            queue.paused or queue.signal.waited_for
            for publisher in self.publishers.values()
            for queue in publisher.inboxes
        )

    def wake(self) -> None:
        self._signal.set()

    # its own

    async def run(self) -> None:
        while True:
            for _ in range(PER_TURN):  # each message may be for another reader
                message = self._receive()
                # A connection's changes come before its messages: they are there by now, signalled or not.
                changes = self._changes.receive_some()[0]
                for change in changes:
                    self._on_change(parse_monitor_message(change))
                if message is not None:
                    self._on_message(*message)
                elif not changes:
                    await self._signal.wait()
                    break
            await asyncio.sleep(0)

    def _receive(self) -> tuple[int, list[bytes]] | None:
        """The file descriptor of the connection that a message came on, and its frames; None: there is none.

        Messages without a connection are skipped: those of ZMTP 1.0, which is what libzmq takes a connection for that
        does not greet as ZMTP does (a port scan, a TLS client).
        """
        while zmq.zmq_poll(self._polled, 0):
            first, frames = receive(self._socket)
            with contextlib.suppress(zmq.ZMQError):
                return int(first.get(zmq.SRCFD)), frames
        return None

    def _on_change(self, change: Any) -> None:
        kind, connection = change["event"], change["value"]
        if kind == zmq.EVENT_ACCEPTED:
            self._accepted[connection] = self._count
            self._count += 1
        elif kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            for publisher in self.publishers.values():
                if publisher.connection is None:
                    publisher.put(Change.UNCERTAIN)
        else:
            number = self._accepted.pop(connection, self._count)
            known = {publisher.connection for publisher in self.publishers.values()}
            for publisher in self.publishers.values():
                if publisher.connection == connection:
                    publisher.connection = None
                    publisher.put(Change.DISCONNECTED)
                    if any(later > number for one, later in self._accepted.items() if one not in known):
                        publisher.put(Change.UNCERTAIN)

    def _on_message(self, connection: int, frames: list[bytes]) -> None:
        topic = frames[0] if len(frames) > 2 else b""
        publisher = self.publishers.get(topic)
        if publisher is None or not publisher.inboxes:
            self._listener.unknown_topic(topic, self)
            return
        if connection != publisher.connection:
            number = self._accepted.get(connection, -1)  # a lost connection may have left messages, and has no number
            if publisher.connection is not None and number < self._accepted[publisher.connection]:
                if number >= 0:
                    self._listener.duplicate_topic(topic, self, first=not publisher.duplicate_topic)
                    publisher.duplicate_topic = True
                return
            if number >= 0:
                publisher.connection = connection
                publisher.put(Change.CONNECTED)
        publisher.put(frames)


def _shown(topic: bytes) -> str:
    return topic[:200].decode(errors="replace")
