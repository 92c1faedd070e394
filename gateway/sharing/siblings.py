"""The workers of one host among each other: who is there, who leads, and what one tells the others.

Rules: the lead is the lowest number that lives. All know at once when a worker ends, since the kernel closes its
sockets. Messages from one worker come in order, and none is lost while it is linked: who missed some because its link
was cut hears of it as one that left and joined, and whoever keeps a picture in the others tells it anew then. Nobody
waits for a sibling, and nothing that a sibling says raises here.

Each worker listens on ``worker-N.sock`` in the seat's directory and connects to all with a lower number. One that has
just started *knocks* at those with a higher number, so that they connect at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from gateway.core.log_limit import LogLimit, left_out
from gateway.core.observer import Observer
from gateway.core.signal import Signal
from gateway.core.tasks import TaskSet
from gateway.framework import Clock
from gateway.sharing.link import Link, frame
from gateway.sharing.seat import Seat
from gateway.sharing.worker_sockets import SocketDirectory

log = logging.getLogger("kvgate.sharing")

HELLO = "hello"
KNOCK = "knock"

RETRY = 0.2
"""Seconds between two tries to connect to a sibling that is not there: a try takes 30 us, and who starts knocks."""

PATIENCE = 1.0
"""Seconds that a start waits for siblings that listen but do not answer: one may be held up, or stopped."""

GREETING = 5.0
"""Seconds within which who connects must have said its number."""

Hearer = Callable[[int, bytes], None]


class Change(NamedTuple):
    """Who has joined and who has left at once; a number in both was cut off, and has missed messages. ``lead``: whether
    another worker leads from now on."""

    joined: frozenset[int]
    left: frozenset[int]
    lead: bool


class Siblings:
    """Of the worker of this ``seat``. ``lead``: the number of the worker that leads. ``live``: the numbers of all that
    are there, our own among them."""

    def __init__(self, seat: Seat, clock: Clock, observer: Observer) -> None:
        self.number = seat.number
        self.lead = seat.number
        self.live = frozenset((seat.number,))
        self._seat = seat
        self._observer = observer
        self._limit = LogLimit(clock)
        self._links: dict[int, Link] = {}
        self._strangers: set[Link] = set()
        self._hearers: dict[str, Hearer] = {}
        self._watchers: list[Callable[[Change], None]] = []
        self._missing = {number: Signal() for number in range(seat.number)}
        self._flushing = False
        self._closed = False
        self._sockets: SocketDirectory | None = None
        self._changed: asyncio.Event = asyncio.Event()
        self._server: asyncio.AbstractServer | None = None
        self._tasks = TaskSet()

    @property
    def is_lead(self) -> bool:
        return self.lead == self.number

    @property
    def count(self) -> int:
        """How many workers there are when all live."""
        return self._seat.count

    # telling and hearing

    def tell(self, topic: str, message: bytes) -> None:
        """Tell all that are linked now. Raises ValueError if it is longer than ``link.MAX_FRAME``."""
        if self._links:
            framed = frame(topic, message)
            for link in self._links.values():
                link.queue(framed)
            self._flush_soon()

    def tell_one(self, number: int, topic: str, message: bytes) -> bool:
        """Whether this sibling is linked; else nothing is sent. Raises ValueError as ``tell``."""
        link = self._links.get(number)
        if link is None:
            return False
        link.queue(frame(topic, message))
        self._flush_soon()
        return True

    def hear(self, topic: str, callback: Hearer) -> None:
        """Call ``callback(number, message)`` with what siblings tell under ``topic``. A topic has one hearer."""
        assert topic not in self._hearers, topic
        self._hearers[topic] = callback

    def watch(self, callback: Callable[[Change], None]) -> None:
        """Call it after each change of who is there."""
        self._watchers.append(callback)

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        for link in tuple(self._links.values()):
            link.flush()

    # life

    async def start(self) -> None:
        """Listen, and link with those that are there already. Raises ConfigError if that directory is not ours."""
        sockets = self._sockets = SocketDirectory(self._seat.directory)
        listening = sockets.listen(self.number)
        try:
            self._server = await asyncio.get_running_loop().create_unix_server(self._accept, sock=listening)
        except BaseException:
            listening.close()
            raise
        for number, signal in self._missing.items():
            self._tasks.start(self._keep_linked(number, signal), name=f"connect to worker {number}")
        present = [number for number in range(self.number) if sockets.is_there(number)]
        present += [number for number in range(self.number + 1, self._seat.count) if await self._knock(number)]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while not self.live.issuperset(present):
                    self._changed.clear()
                    await self._changed.wait()

    async def close(self) -> None:
        """Leave: the others know at once. Safe after a failed start, and twice."""
        self._closed = True
        await self._tasks.close()
        if self._server is not None:
            self._server.close()
            self._server = None
            assert self._sockets is not None
            self._sockets.unlink(self.number)
        if self._sockets is not None:
            self._sockets.close()
            self._sockets = None
        for link in (*self._links.values(), *self._strangers):
            link.close()
        self._links.clear()
        self._strangers.clear()

    # links

    def _accept(self) -> Link:
        """One that has connected to us, and has yet to say who it is."""
        link = Link(self._greeted, self._strangers.discard, self._limit)
        self._strangers.add(link)
        asyncio.get_running_loop().call_later(GREETING, self._expect_greeting, link)
        return link

    def _expect_greeting(self, link: Link) -> None:
        if link in self._strangers:
            link.abort()

    def _greeted(self, link: Link, topic: str, message: bytes) -> None:
        """The first message of one that has connected to us."""
        number = _read_number(message, self._seat.count)
        if topic == KNOCK and number in self._missing:
            self._missing[number].set()
            link.close()
        elif topic == HELLO and number is not None and number > self.number and not self._closed:
            self._strangers.discard(link)
            self._greet(link, HELLO)
            self._join(number, link)
        else:
            self._wrong("greeting", f"{topic[:16]!r} as a greeting")
            link.abort()

    def _answered(self, number: int, link: Link, topic: str, message: bytes) -> None:
        """The first message of one to which we have connected."""
        if topic == HELLO and _read_number(message, self._seat.count) == number and not self._closed:
            self._join(number, link)
        else:
            self._wrong("greeting", f"{topic[:16]!r} as an answer to a greeting")
            link.abort()

    def _greet(self, link: Link, topic: str) -> None:
        link.queue(frame(topic, str(self.number).encode()))
        link.flush()

    async def _knock(self, number: int) -> bool:
        """Whether someone listens there: it will connect to us."""
        link = await self._connect(number, Link(lambda link, topic, message: None, lambda link: None, self._limit))
        if link is None:
            return False
        self._greet(link, KNOCK)
        link.close()
        return True

    async def _connect(self, number: int, link: Link) -> Link | None:
        assert self._sockets is not None, "it has started"
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: link, self._sockets.path(number))
        except OSError:  # nobody is there yet, or any more
            return None
        return link

    async def _keep_linked(self, number: int, signal: Signal) -> None:
        """Connect to a sibling whenever it is not linked."""
        while True:
            if number not in self._links:
                await self._try_linking(number)
            linked = number in self._links
            await signal.wait(None if linked else RETRY)

    async def _try_linking(self, number: int) -> None:
        decided = asyncio.get_running_loop().create_future()

        def decide(_: object = None) -> None:
            if not decided.done():
                decided.set_result(None)

        def answered(link: Link, topic: str, message: bytes) -> None:
            self._answered(number, link, topic, message)
            decide()

        link = await self._connect(number, Link(answered, decide, self._limit))
        if link is None:
            return
        self._greet(link, HELLO)
        try:
            async with asyncio.timeout(GREETING):
                await decided
        except TimeoutError:
            link.abort()
        except BaseException:
            link.abort()
            raise

    def _join(self, number: int, link: Link) -> None:
        before, self._links[number] = self._links.get(number), link
        link.become(number, self._hear, self._leave)
        if before is not None:  # its process has ended, which we have not read yet
            before.abort()
        self._note(joined={number}, left=set() if before is None else {number})

    def _leave(self, link: Link) -> None:
        number = link.number
        if number is None or self._links.get(number) is not link:
            return
        del self._links[number]
        if number in self._missing:
            self._missing[number].set()
        self._note(joined=set(), left={number})

    def _note(self, joined: set[int], left: set[int]) -> None:
        lead_before = self.lead
        self.live = frozenset((self.number, *self._links))
        self.lead = min(self.live)
        if self._closed:
            return
        self._changed.set()
        change = Change(frozenset(joined), frozenset(left), self.lead != lead_before)
        if change.lead:
            log.info("worker %d leads", self.lead)
        for watcher in self._watchers:
            try:
                watcher(change)
            except Exception:
                log.exception("who watches the other workers has failed")

    def _hear(self, link: Link, topic: str, message: bytes) -> None:
        assert link.number is not None
        hearer = self._hearers.get(topic)
        if hearer is None:
            self._wrong("topic", f"the topic {topic[:64]!r}, which nobody hears")
            return
        try:
            hearer(link.number, message)
        except Exception as error:
            self._wrong("message", f"a message of {topic!r} that cannot be used", error)

    def _wrong(self, reason: str, what: str, error: Exception | None = None) -> None:
        self._observer.sibling_refused(reason)
        if (more := self._limit.admit(reason)) is not None:  # what it is, its sender has chosen
            log.warning("another worker has sent %s%s", what, left_out(more), exc_info=error)


def _read_number(message: bytes, count: int) -> int | None:
    """The number of a worker; None: it is none."""
    try:
        number = msgspec.json.decode(message, type=int)
    except msgspec.MsgspecError:
        return None
    return number if 0 <= number < count else None
