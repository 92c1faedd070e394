"""The exact account of the work that we sent to one engine core and have not got back.

Rules: a reservation is made without an await after the load was read; whatever is booked is taken back exactly once,
by whichever call comes first, in any order and however often it is repeated; after the last ``settle`` every count
of ours is zero. What others sent is only known from scrapes: it is an estimate, never below zero, and fades.

Knows nothing of HTTP, scheduling or models: several endpoints (models on one URL) may share one ledger, since the
load on a core is one load.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from math import exp, inf

from gateway.fleet.hardware import STEP_TOKENS
from gateway.framework import LATELY, Clock, EngineMetrics, Sums

GAUGE_LAG = 0.25
"""Seconds by which an engine's gauges may lag behind what we know. They are written once per step, and an abort takes
effect at the next one: 20 to 60 ms each on a GPU, more beside a long prefill. A request that we settled within this
time before a scrape was asked for may still be in its figures, so it counts as ours."""

SETTLED_KEPT = 10.0
"""Seconds for which a settled request is remembered for the scrape that is on its way: above any sane scrape timeout,
and it bounds the memory of an engine that is never scraped again."""

PACE_MEMORY = 0.95
"""Weight of what was seen before at each prompt that is computed: the last 20 tell how fast beliefs come true."""

FADE_STEP = 1e-3
"""Half-lives within which foreign load does not fade: it is asked for at every candidate, and a power is dear."""

SPARE_EXPIRIES = 64
"""Entries of requests that ended before their prefill expired which may lie in the heap, beyond twice the live ones."""


class Reservation:
    """One request's part of a ledger. Every method may be called in any order, and more than once.

    ``ahead``: prefill tokens of ours that were queued there when its own were booked, which are not included; none,
    where none were. ``ahead_attention``: theirs. ``since``: when the first of them was begun; its own booking, where
    there were none. ``beside``: our other requests there at that moment, or when it was made. All that is what its time
    to first token is explained by.
    """

    __slots__ = (
        "_attention",
        "_booked",
        "_generated",
        "_kv",
        "_ledger",
        "_open",
        "_prefill",
        "_seconds",
        "ahead",
        "ahead_attention",
        "beside",
        "since",
    )

    def __init__(self, ledger: Ledger, kv_tokens: int, beside: int) -> None:
        self._ledger = ledger
        self._prefill = 0
        self._attention = 0.0
        self._seconds = 0.0
        self._booked = False
        self._kv = kv_tokens
        self._generated = 0
        self._open = True
        self.ahead = 0
        self.ahead_attention = 0.0
        self.since = inf
        self.beside = beside

    @property
    def open(self) -> bool:
        """Not yet settled."""
        return self._open

    def computes(
        self, tokens: int, *, context: int = 0, seconds: float = 0.0, expires_prefill_at: float | None = None
    ) -> None:
        """The engine computes the prompt: books the prefill tokens now, behind those that are queued.

        ``tokens``, ``expires_prefill_at``: as for ``Ledger.reserve``. ``context``: tokens before them that it holds.
        ``seconds``: what computing them takes, as far as is known. A prompt is computed once: where prefill tokens
        were booked before, given back or not, this changes nothing.
        """
        if self._open and not self._booked and tokens > 0:
            self.beside = self._ledger.requests - 1
            self._book(tokens, context, seconds, expires_prefill_at)

    def first_token(self) -> None:
        """The prompt is computed: gives back the prefill tokens."""
        if self._prefill:
            self._computed(self._ledger._clock.monotonic(), seen=True)

    def generated(self, tokens: int, *, exact: bool = False) -> None:
        """The answer has ``tokens`` tokens so far. A total, not an addition: a lower one changes nothing, unless it is
        ``exact``: the engine's own count, where those before were guessed from a stream's events."""
        tokens = max(0, tokens)
        if self._open and (tokens > self._generated or exact):
            self._ledger.kv_tokens += tokens - self._generated
            self._generated = tokens

    def settle(self) -> None:
        """The request is over, however it ended: gives back all that is left."""
        if not self._open:
            return
        self._open = False
        if self._prefill:
            self._computed(self._ledger._clock.monotonic(), seen=False)
        self._ledger._release(self._kv + self._generated)

    def _book(self, tokens: int, context: int, seconds: float, expires_at: float | None) -> None:
        ledger = self._ledger
        ledger._look()
        self.ahead, self.ahead_attention = ledger._prefill, ledger.prefill_attention
        self._booked = True
        self._prefill, self._seconds = tokens, seconds
        self._attention = attention = tokens * (max(0, context) + tokens / 2)
        ledger._prefill += tokens
        ledger.prefill_attention += attention
        now = ledger._monotonic()
        ledger._share = ledger.prefill_share(now) + seconds / LATELY
        ledger._share_at = now
        if ledger._queue:
            self.since = ledger._begun
        else:
            self.since = now
            ledger._head, ledger._begun, ledger._most_done = self, now, seconds
        ledger._queue[self] = None
        if expires_at is not None:
            ledger._expires(self, expires_at)

    def _computed(self, at: float, *, seen: bool) -> None:
        """The prompt is not in the queue any more. The one behind it was begun then, if it was the first.

        ``seen``: it has been computed, and ``at`` is when.
        """
        ledger = self._ledger
        if seen:
            ledger.prefilled += self._seconds
            if ledger._head is self:
                ledger._learn_pace(self._seconds, at - ledger._begun)
        ledger._prefill -= self._prefill
        ledger.prefill_attention -= self._attention
        self._prefill = 0
        del ledger._queue[self]
        if ledger._head is self:
            ledger._head = head = next(iter(ledger._queue), None)
            ledger._begun = at
            if head is not None:
                ledger._most_done = head._seconds
            else:
                ledger._most_done = ledger.prefill_attention = 0.0  # the latter: what rounding has left


class Ledger:
    """The load of one engine core, as ``framework.Load`` shows it to plugins.

    ``half_life``: seconds in which foreign load, once scraped, counts half. ``prefilled``: seconds of prompts of ours
    that were computed there so far, as they were believed to be. ``step_tokens``: prompt tokens of one step of the
    engine.
    """

    def __init__(self, clock: Clock, half_life: float = 5.0) -> None:
        self._clock = clock
        self._monotonic = clock.monotonic
        self._half_life = half_life
        # Plain attributes, although they are not for others to write: each candidate of each request is asked for them.
        self.requests = 0
        self.kv_tokens = 0
        self.prefill_attention = 0.0
        self.prefilled = 0.0
        self.step_tokens = STEP_TOKENS
        self._prefill = 0
        # Prompts are computed in the order in which they came: who waits, the first of them, when that was begun, and
        # its seconds.
        self._queue: dict[Reservation, None] = {}
        self._head: Reservation | None = None
        self._begun = 0.0
        self._most_done = 0.0
        # Believed and real seconds of the last prompts: a queue is told in believed ones, and done in real ones.
        self._believed = self._real = self._pace = 1.0
        self._share = self._share_at = 0.0
        self._expiring: list[tuple[float, int, Reservation]] = []
        self._made = 0
        self._settled: deque[tuple[float, int]] = deque()
        self._scraped_requests = 0.0
        self._scraped_kv = 0.0
        self._scraped_at = 0.0
        # What has faded since, and until when that is true.
        self._foreign_requests = 0.0
        self._foreign_kv = 0.0
        self._fade_until = inf
        # When time alone has changed a figure that is kept: something expires, or has faded.
        self._stale_at = inf

    def sums(self, now: float) -> Sums:
        if now >= self._stale_at:
            self._renew(now)
        done = (now - self._begun) * self._pace
        if done > self._most_done:
            done = self._most_done
        return (
            self.requests + self._foreign_requests,
            self._prefill,
            self.prefill_attention,
            done,
            self.kv_tokens + self._foreign_kv,
        )

    def prefill_share(self, now: float) -> float:
        return self._share * exp((self._share_at - now) / LATELY) if self._share else 0.0

    @property
    def prefill_tokens(self) -> int:
        self._look()
        return self._prefill

    @property
    def unallocated_tokens(self) -> int:
        """Of ``prefill_tokens``, those for which the engine has yet to find room in its KV memory, or has not said that
        it has: less what of the first prompt is computed by now, as far as is known, but for its last step: what that
        has evicted it says when it has ended."""
        self._look()
        waiting, head = self._prefill, self._head
        step = self.step_tokens
        if head is not None and head._prefill > step and self._most_done > 0:
            done = min(1.0, (self._monotonic() - self._begun) * self._pace / self._most_done)
            waiting -= max(0, int(done * head._prefill) - step)
        return waiting

    @property
    def prefill_done(self) -> float:
        """Seconds of the queued prefill that are behind us: since the first of it was begun, but no more than that
        takes by itself. One that is stuck does not let those behind it vanish. In seconds as they are believed: where
        the last prompts took half of what was believed, each second counts as two."""
        return self.sums(self._monotonic())[3]

    @property
    def foreign_requests(self) -> float:
        self._look()
        return self._foreign_requests

    @property
    def foreign_kv_tokens(self) -> float:
        self._look()
        return self._foreign_kv

    def reserve(self, prefill_tokens: int, kv_tokens: int, *, expires_prefill_at: float | None = None) -> Reservation:
        """Book one request.

        ``prefill_tokens``: prompt tokens that the engine has to compute. ``kv_tokens``: what it will hold from the
        start, the whole prompt. ``expires_prefill_at``: Clock.monotonic() from which the prefill counts as done
        where nothing will tell (an unstreamed answer); None: only ``first_token`` and ``settle`` tell.
        Negative numbers count as 0. What computing takes, and behind what, ``Reservation.computes`` can be told.
        """
        reservation = Reservation(self, max(0, kv_tokens), self.requests)
        self.requests += 1
        self.kv_tokens += reservation._kv
        if prefill_tokens > 0:
            reservation._book(prefill_tokens, 0, 0.0, expires_prefill_at)
        return reservation

    def scraped(self, metrics: EngineMetrics, asked: float) -> None:
        """Learn what others sent from a scrape that was asked for at ``asked`` (Clock.monotonic()) and is complete now.

        The engine took its figures at an unknown moment between ``asked`` (less its own lag) and now. Every request of
        ours that was live at any time in between may be in them, so all those are taken off: a request that ended
        while the scrape was under way never turns into foreign load, and one that has not reached the engine yet makes
        the estimate too low for a second, never too high. Blocks are handed out whole, so each of ours may hold one
        block more than its tokens fill.
        """
        self._forget_settled(asked - GAUGE_LAG)
        ours = self.requests + len(self._settled)
        ours_kv = self.kv_tokens + sum(kv for _, kv in self._settled) + ours * metrics.block_size
        self._scraped_requests = float(max(0, metrics.running + metrics.waiting - ours))
        self._scraped_kv = max(0.0, metrics.kv_usage * metrics.kv_capacity - ours_kv)
        self._scraped_at = self._clock.monotonic()
        self._fade_until = self._stale_at = 0.0

    def __repr__(self) -> str:
        return f"<Ledger requests={self.requests} prefill={self._prefill} kv={self.kv_tokens}>"

    def _learn_pace(self, believed: float, real: float) -> None:
        self._believed = PACE_MEMORY * self._believed + believed
        self._real = max(PACE_MEMORY * self._real + real, 1e-6)  # those of one step end at once
        self._pace = self._believed / self._real

    def _release(self, kv_tokens: int) -> None:
        self.requests -= 1
        self.kv_tokens -= kv_tokens
        now = self._clock.monotonic()
        self._forget_settled(now - SETTLED_KEPT)
        self._settled.append((now, kv_tokens))

    def _forget_settled(self, before: float) -> None:
        settled = self._settled
        while settled and settled[0][0] < before:
            settled.popleft()

    def _expires(self, reservation: Reservation, at: float) -> None:
        self._made += 1
        heappush(self._expiring, (at, self._made, reservation))
        self._stale_at = min(self._stale_at, at)
        if len(self._expiring) > 2 * self.requests + SPARE_EXPIRIES:
            self._expiring = [entry for entry in self._expiring if entry[2]._prefill]
            heapify(self._expiring)

    def _look(self) -> None:
        """Before a figure is told that time alone may have changed."""
        if self._stale_at < inf and (now := self._monotonic()) >= self._stale_at:
            self._renew(now)

    def _renew(self, now: float) -> None:
        """Let go what has expired, and fade what is foreign: true within a thousandth."""
        while self._expiring and self._expiring[0][0] <= now:
            at, _, reservation = heappop(self._expiring)
            if reservation._prefill:
                reservation._computed(at, seen=False)
                self.prefilled += reservation._seconds
        if now >= self._fade_until:
            fade = 0.5 ** ((now - self._scraped_at) / self._half_life)
            self._foreign_requests, self._foreign_kv = self._scraped_requests * fade, self._scraped_kv * fade
            foreign = self._scraped_requests or self._scraped_kv
            self._fade_until = now + FADE_STEP * self._half_life if foreign else inf
        self._stale_at = min(self._fade_until, self._expiring[0][0] if self._expiring else inf)
