"""Divides the limits of tenants with other hosts, and adds up what all of them spend: see ``division.py``.

It runs beside the requests, in the worker that leads: these read what it has written into the memory that they share.
While the server is away, the configured fallback counts from a second on, and also while the worker that leads stands
still; whatever the server forgets is told anew.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import NamedTuple

from gateway.core.log_limit import LogLimit, left_out
from gateway.core.tasks import TaskSet
from gateway.framework import Clock
from gateway.sharing.settings import SharingSettings
from gateway.tenants.budget_parts import BudgetParts
from gateway.tenants.division import AT_ONCE, BEAT, DIVIDE, FORGET, LEASE, plan, told
from gateway.tenants.gcra import CELLS, drain, hold
from gateway.tenants.limits_layout import (
    ELSEWHERE,
    FAIR,
    LIMITS,
    METERS,
    PART,
    ROOM,
    TOLD,
    WANT,
    WHOLE,
)
from gateway.tenants.places import Cells, Limit
from gateway.tenants.shared_rows import Mode
from gateway.tenants.shared_state import SharedState
from gateway.valkey.client import Away
from gateway.valkey.link import Link

log = logging.getLogger("kvgate.tenants")

TICK = 0.003
"""Seconds between two looks at what is wanted: a request that waits for a part waits for some of these."""

FOLLOW = 0.1
"""Seconds between two looks of a worker whether it leads now."""

GRACE = 1.0
"""Seconds without the server for which parts stay as they are: it may only be restarted, or fail over."""

STILL = LEASE - 1.0
"""Seconds without a word of the worker that leads after which the fallback counts: from ``LEASE`` on other hosts get
what this one has. The second is for the answer to its last word, half a second where the server is slow, and the look.
"""

FALLBACKS = {"share": Mode.SHARE, "open": Mode.OPEN, "closed": Mode.CLOSED}


class Asked(NamedTuple):
    """A limit of a row, and what is asked for it."""

    row: int
    hashed: int
    limit: int
    key: str
    values: tuple[float, float, float, float]


class Divider:
    """``settings``: with a url. Raises ConfigError as ``Link`` does."""

    def __init__(self, state: SharedState, settings: SharingSettings, clock: Clock, chance: random.Random) -> None:
        assert settings.url is not None
        self._state = state
        self._table = state.table
        self._rows = state.rows
        self._host = state.table.host
        self._fallback = FALLBACKS[settings.fallback]
        self._clock = clock
        start = f"kvgate:{settings.name}"
        self._limit, self._hosts = f"{start}:limit", f"{start}:limit-hosts"
        self._channel = f"{start}:limit-wanted"
        self.link = Link(settings.url, {self._channel: self._heard}, clock, chance)
        self._budgets = BudgetParts(state, self.link, start=start, channel=self._channel, host=self._host)
        self._wanted: set[str] = set()
        self._seen = 0
        self._beat_at = 0.0
        self._up_at: float | None = None
        self._down_at = clock.monotonic()
        self._often = LogLimit(clock)
        self._tasks = TaskSet()

    def start(self) -> None:
        self._tasks.start(self._run(), name="divide limits with other hosts")

    async def close(self) -> None:
        await self._tasks.close()
        await self.link.close()

    @property
    def mode(self) -> str:
        """The one in force, as ``modes`` names it."""
        return Mode(self._table.mode).name.lower()

    @property
    def replicas(self) -> int:
        """Hosts that divide the limits, this one among them."""
        return self._table.replicas

    def modes(self) -> dict[tuple[str, ...], float]:
        """Which of the modes is in force: 1 of it, 0 of the others."""
        return {(mode.name.lower(),): float(mode == self._table.mode) for mode in Mode}

    def _heard(self, data: bytes) -> None:
        self._wanted.add(data.decode(errors="replace"))

    async def _run(self) -> None:
        await self._follow()
        self._down_at = self._clock.monotonic()  # parts stay as the one that led before has left them
        self.link.start()  # for as long as it lives: who leads once does so until its end
        while True:
            await asyncio.sleep(TICK)
            try:
                await self._step(self._clock.monotonic())
            except Away as error:
                self._tell_all()
                if (count := self._often.admit("away")) is not None:
                    log.warning("limits could not be divided: %s%s", error, left_out(count))
            except Exception:  # whatever it is, limits are to be divided again when it is over
                self._tell_all()
                if self._often.admit("failed") is not None:
                    log.exception("limits could not be divided")
                await asyncio.sleep(FOLLOW)

    async def _follow(self) -> None:
        """Until this worker leads. If the one that does stands still, other hosts get what this one has."""
        told, told_at = self._table.told, self._clock.monotonic()
        while not self._state.leads():
            await asyncio.sleep(FOLLOW)  # what another process does is no event here
            now = self._clock.monotonic()
            with self._table:
                if self._table.told != told:
                    told, told_at = self._table.told, now
                elif now - told_at >= STILL and self._table.mode == Mode.DIVIDED:
                    self._use_fallback(f"the worker that leads has said nothing for {STILL:g} s")

    async def _step(self, now: float) -> None:
        if not self.link.up:
            self._fall_back(now)
            return
        if self._up_at is None:
            self._up_at = now
            self._tell_all()
        with self._table:
            self._seen, rows = self._table.changes(METERS, self._seen)
            wanted, self._wanted = self._wanted, set()
            rows += [row for row in (self._table.find(METERS, name) for name in wanted) if row >= 0]
            if whole := now - self._beat_at >= BEAT:
                self._beat_at = now
                rows = list(self._table.rows(METERS))
        if whole or rows:
            await self._divide(set(rows))
        await self._budgets.step(wanted, now)

    def _tell_all(self) -> None:
        """Whatever was told may be lost: tell all at the next step."""
        self._beat_at = 0.0
        self._budgets.forget()

    def _fall_back(self, now: float) -> None:
        if self._up_at is not None:
            self._up_at, self._down_at = None, now
        if now - self._down_at >= GRACE and self._table.mode != self._fallback:
            self._use_fallback(f"Valkey is away ({self.link.problem})")

    def _use_fallback(self, why: str) -> None:
        replicas = self._table.replicas
        self._table.divide(self._fallback, replicas)
        log.error(
            "limits are not divided with other hosts, since %s: %s",
            why,
            {
                Mode.SHARE: f"this host allows 1 of {replicas} parts of each",
                Mode.OPEN: "there are none until they are divided again",
                Mode.CLOSED: "who has limits is refused until they are divided again",
            }[self._fallback],
        )

    # limits

    async def _divide(self, rows: set[int]) -> None:
        with self._table:
            now = self._clock.monotonic()
            asked = [one for row in sorted(rows) for one in self._asks(row, now)]
        again: set[int] = set()
        for start in range(0, max(1, len(asked)), AT_ONCE):
            some = asked[start : start + AT_ONCE]
            arguments: list[str] = []
            for one in some:
                arguments += [f"{value:.6f}" for value in one.values] + [self._table.name(METERS, one.row)]
            answers = await self.link.ask(
                *("EVAL", DIVIDE, 1 + len(some), self._hosts, *(one.key for one in some)),
                *(self._channel, self._host, int(LEASE * 1000), *arguments),
            )
            with self._table:
                replicas = max(1, int(answers[0]))
                for one, answer in zip(some, answers[1:], strict=True):
                    if self._take(one, answer, self._clock.monotonic()):
                        again.add(one.row)
                self._divided(replicas, whole=start + AT_ONCE >= len(asked))
        self._wanted |= {self._table.name(METERS, row) for row in again}

    def _divided(self, replicas: int, *, whole: bool) -> None:
        """``whole``: all that this host has was told, so that its parts count from now on."""
        before = self._table.mode
        self._table.divide(Mode.DIVIDED if whole else before, replicas)
        if whole and before != Mode.DIVIDED:
            log.info("limits are divided between %d hosts", replicas)

    def _asks(self, row: int, now: float) -> list[Asked]:
        """What is asked of the limits of a row. What is given back is not used any more from here on."""
        table, at = self._table, self._table.cells(METERS, row)
        cells, hashed = table.floats, table.hash_of(METERS, row)
        if not hashed:
            return []
        counters = table.counters(METERS, row)
        used = [drain(self._bucket(at, limit), now) for limit in (Limit.REQUESTS, Limit.TOKENS)]
        for counter in range(METERS.counters):
            begin = counters + counter * table.workers
            used.append(float(sum(table.ints[begin : begin + table.workers])))
        idle = not any(used) and now - table.idle_since(METERS, row) >= FORGET
        if idle and not cells[at + TOLD]:
            return []
        if idle:
            cells[at + TOLD] = 0.0
        found = []
        for limit in range(LIMITS):
            whole, part = cells[at + WHOLE + limit], cells[at + PART + limit]
            wanted, cells[at + WANT + limit] = cells[at + WANT + limit], 0.0
            if not whole:
                continue
            keep, want = plan(whole, part, used[limit], wanted, cells[at + FAIR + limit], table.replicas)
            if idle:
                keep = want = 0.0
            if keep < part:
                self._hold(at, limit, keep, now)
                cells[at + ROOM + limit] += part - keep  # who needs it after all asks for it
            key = f"{self._limit}:{table.name(METERS, row)}:{limit}"
            found.append(Asked(row, hashed, limit, key, (whole, keep, want, used[limit])))
        return found

    def _take(self, asked: Asked, answer: bytes, now: float) -> bool:
        """Whether more of it has to be given back at once."""
        table, limit = self._table, asked.limit
        if table.hash_of(METERS, asked.row) != asked.hashed:
            return False
        part, room, elsewhere, fair = told(answer)
        cells, at = table.floats, table.cells(METERS, asked.row)
        cells[at + ROOM + limit], cells[at + ELSEWHERE + limit], cells[at + FAIR + limit] = room, elsewhere, fair
        self._hold(at, limit, part, now)
        whole, _, want, used = asked.values
        if want:
            cells[at + TOLD] = now
        return bool(whole and fair and part > max(used, fair) + 1e-3)

    def _hold(self, at: int, limit: int, part: float, now: float) -> None:
        self._table.floats[at + PART + limit] = part
        if limit in (Limit.REQUESTS, Limit.TOKENS):
            hold(self._bucket(at, limit), part, now)

    def _bucket(self, at: int, limit: int) -> Cells:
        return self._table.floats[at + CELLS * limit : at + CELLS * (limit + 1)]
