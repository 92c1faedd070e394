"""The bus of replicas: each tells the others its loads over a channel of Valkey, and hears theirs.

Rows are told, not bookings: what a row says replaces what it said before, so a lost message heals with the next, and
nothing stays booked of who is gone. What changes is gathered for a tick and told; all rows are told each second, and to
each who asks. One message is under way at a time: while the server is slow, changes gather here, as rows, and no more
than that. While it is away nothing is told, and what was heard fades.

One process of a host speaks for all of its workers: their rows are told as one.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from gateway.core.log_limit import LogLimit, left_out
from gateway.core.observer import Observer
from gateway.core.tasks import TaskSet
from gateway.fleet.load.others import Row
from gateway.framework import Clock
from gateway.sharing.messages import (
    STEADY,
    VERSION,
    WHOLE,
    Bye,
    Charged,
    Dropped,
    Hello,
    Loads,
    decode,
    encode,
    is_idle,
    written,
)
from gateway.sharing.peers import SCRAPED, Peers, Seen, Table
from gateway.sharing.settings import SharingSettings
from gateway.valkey.client import Away
from gateway.valkey.link import Link

log = logging.getLogger("kvgate.sharing")

ALONE = 0.05
"""Seconds between two looks while there is no other replica: nobody waits for anything then but an answer to a first
hello."""

LOOK = 0.02
"""Seconds between two looks at who is silent: rows fade from a tenth of a second on."""

ASKS = 1.0
"""Seconds between two questions for all rows."""

WAY = 0.0005
"""Seconds that a message takes, about: 0.4 ms at the median, 0.9 ms at the 99th percentile."""


class HostTable(Table, Protocol):
    """``LoadTable``: also what this host's own workers have booked."""

    def changed(self, cursor: Sequence[int] | None) -> tuple[Sequence[int] | None, dict[str, Row]]: ...


class Charges(Protocol):
    """What the queues of this host's models charge tenants: see ``framework.Order``."""

    def take(self) -> tuple[Charged, ...]: ...

    def hear(self, charged: Sequence[Charged]) -> None: ...


class NoCharges:
    def take(self) -> tuple[Charged, ...]:
        return ()

    def hear(self, charged: Sequence[Charged]) -> None:
        """Nobody cares."""


class Voice:
    """What each message of one process begins with. ``place``: of ``Hello``, for people."""

    __slots__ = ("_incarnation", "_sequence", "place", "replica")

    def __init__(self, replica: str, place: str, clock: Clock) -> None:
        self.replica, self.place = replica, place
        # Above that of any process that has spoken for it before: those were of this host, whose one clock this is, and
        # which does not step. A name does not outlive its host's start (``replicas.name_of``).
        self._incarnation = int(clock.monotonic() * 1e6)
        self._sequence = 0

    def next(self) -> tuple[int, str, int, int]:
        self._sequence += 1
        return VERSION, self.replica, self._incarnation, self._sequence


class Bus:
    """``replica``: the name of this host's gateway, the same for all who ever speak for it. ``place``: its host and
    port, for people. ``writers``: numbers in ``table`` for others' rows. ``settings``: with a url. Raises ConfigError.

    ``unseen``: how many bookings of the others are not in the table, about; ``link``: whether the server is there;
    ``dropped``: messages that were not used, by reason. ``charges``: set before ``start`` where there are queues.
    """

    def __init__(
        self,
        settings: SharingSettings,
        table: HostTable,
        writers: Sequence[int],
        *,
        replica: str,
        place: str,
        clock: Clock,
        observer: Observer,
        chance: random.Random,
    ) -> None:
        assert settings.url is not None
        self.unseen = 0.0
        self.dropped: Counter[str] = Counter()
        self.charges: Charges = NoCharges()
        self._tick = settings.tick
        self._table = table
        self._clock = clock
        self._observer = observer
        self._voice = Voice(replica, place, clock)
        self._channel = f"kvgate:{settings.name}:loads"
        self._peers = Peers(table, replica, writers)
        self.link = Link(settings.url, {self._channel: self._heard}, clock, chance)
        self.link.watch(self._link_changed)
        self._cursor: Sequence[int] | None = None
        self._busy: dict[str, Row] = {}
        """Our rows as they were last told, of endpoints with work."""
        self._lost = 0.0, -WHOLE
        """The bookings of the others a second when the server was lost, and when that was."""
        self._said_at = self._whole_at = self._asked_at = -WHOLE
        self._whole_wanted = True
        self._limit = LogLimit(clock)
        self._tasks = TaskSet()

    def start(self) -> None:
        self.link.start()
        self._tasks.start(self._run(), name="tell the other replicas our loads")
        self._tasks.start(self._watch(), name="look at who of the other replicas is silent")

    async def close(self, *, ends: bool = True) -> None:
        """``ends``: the replica ends, and all its work with it; else another process will speak for it."""
        await self._tasks.close()
        if ends:
            self.link.tell("PUBLISH", self._channel, encode(Bye(*self._voice.next())))
        await self.link.close()
        self._peers.clear()

    def states(self) -> Mapping[str, int]:
        """How many other replicas are ``fresh`` and ``stale``."""
        return self._peers.states(self._clock.monotonic())

    def seen(self) -> Sequence[Seen]:
        return self._peers.seen(self._clock.monotonic())

    async def _watch(self) -> None:
        """Beside ``_run``, which waits for the server: one that stands still silences all the others."""
        while True:
            await asyncio.sleep(LOOK if len(self._peers) else ALONE)
            now = self._clock.monotonic()
            try:
                self._peers.look(now)
                self.unseen = self._unseen(now)
            except Exception:  # a defect
                if (count := self._limit.admit("look")) is not None:
                    log.exception("the other replicas could not be looked at%s", left_out(count))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._tick if len(self._peers) else ALONE)
            if self.link.up:
                try:
                    await self._say(self._clock.monotonic())
                except Away as error:
                    self._whole_wanted = True
                    if (count := self._limit.admit("away")) is not None:
                        log.info("the loads could not be told: %s%s", error, left_out(count))
                except Exception:  # a defect; but who falls silent is forgotten by the others
                    self._whole_wanted = True
                    if (count := self._limit.admit("defect")) is not None:
                        log.exception("the loads could not be told%s", left_out(count))

    def _unseen(self, now: float) -> float:
        unseen = self._peers.unseen(now, self._tick / 2 + WAY)
        if self.link.up:
            return unseen
        # The others go on although they cannot be heard, also when they are forgotten here.
        rate, since = self._lost
        return max(unseen, rate * min(now - since, SCRAPED))

    async def _say(self, now: float) -> None:
        whole = self._whole_wanted or now - self._whole_at >= WHOLE
        if not whole and not len(self._peers):
            return
        cursor, rows = self._table.changed(None if whole else self._cursor)
        if whole:
            rows = {name: row for name, row in rows.items() if not is_idle(row, now)}
            self._busy = dict(rows)
        else:
            for name, row in rows.items():
                if is_idle(row, now):
                    self._busy.pop(name, None)
                else:
                    self._busy[name] = row
            if not rows and (not self._busy or now - self._said_at < STEADY):
                self._cursor = cursor
                return
        charged = self.charges.take() if whole else ()
        message = Loads(*self._voice.next(), whole, written(rows.items(), now), charged)
        if whole:
            self._whole_wanted, self._whole_at = False, now
        self._cursor, self._said_at = cursor, now
        await self.link.ask("PUBLISH", self._channel, encode(message))

    def _hello(self, *, asks: bool) -> None:
        self._whole_wanted = True
        self.link.tell("PUBLISH", self._channel, encode(Hello(*self._voice.next(), asks, self._voice.place)))

    def _link_changed(self) -> None:
        now = self._clock.monotonic()
        if self.link.up:
            self.charges.take()  # what was charged meanwhile nobody is to hear at once
            self._asked_at = now
            self._hello(asks=True)
        else:
            self._lost = self._peers.rate, now

    def _heard(self, data: bytes) -> None:
        now = self._clock.monotonic()
        try:
            message = decode(data)
            missing = self._peers.take(message, now)
        except Dropped as reason:
            self.dropped[str(reason)] += 1
            self._observer.bus_dropped(str(reason))
            return
        if message.replica != self._voice.replica:
            if isinstance(message, Hello) and message.asks:
                self._hello(asks=False)
            elif isinstance(message, Loads) and message.charged:
                self.charges.hear(message.charged)
        if missing and now - self._asked_at >= ASKS:
            self._asked_at = now
            self._hello(asks=True)
