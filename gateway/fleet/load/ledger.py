"""The ledger of one engine core: an exact account of the work that we sent to it and that has not ended.

Rules: there is no await between reading the load and reserving. What is booked is given back exactly once, by the first
call that does so, in any order and however often calls are repeated. After the last ``settle`` all our counts are zero.
Load of other clients (*foreign*) is known from scrapes only: an estimate, never below zero, that fades.

It knows nothing of HTTP, scheduling or models. The endpoints of several models on one core share its ledger.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from math import exp, inf

from gateway.fleet.load.foreign import Foreign
from gateway.fleet.load.others import Others
from gateway.fleet.settings import STEP_TOKENS
from gateway.framework import Clock, Endpoint
from gateway.framework.cost import LATELY, STALE, Rates, Scalars, Sums
from gateway.framework.fleet import EngineMetrics

GAUGE_LAG = 0.25
"""Seconds by which an engine's gauges may lag behind. They are written once per step, and an abort takes effect at the
next one: 20 to 60 ms each on a GPU, more beside a long prefill. A request that settled within this time before a scrape
was sent may still be in its figures, so it counts as ours."""

SETTLED_KEPT = 10.0
"""Seconds for which a settled request is remembered for a scrape that is on its way. Above any sane scrape timeout; it
bounds the memory for an engine that is never scraped again."""

MOST_SETTLED = 16_384
"""Settled requests that are remembered: of the last ten seconds, at 1,600 a second on one engine."""

PACE_MEMORY = 0.95
"""Weight of earlier prompts at each computed prompt: the last 20 give the ratio of estimated to real time."""

UNPRICED = Scalars(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, STEP_TOKENS)
"""Of a ledger that no cost model has priced: work costs nothing there."""

SPARE_EXPIRIES = 64
"""Heap entries of requests that ended before their prefill expired, allowed beyond twice the live requests."""


class Reservation:
    """One request's part of a ledger, from its placement on. Its methods may be called in any order, and repeatedly.

    ``kv_tokens``: what the engine holds from the start, the whole prompt; a negative number counts as 0. ``endpoint``:
    where it counts as in flight, until it is settled.

    What explains its time to first token: ``ahead``: prefill tokens of ours that were queued when its own were booked.
    ``ahead_attention``: theirs, as ``Ledger.prefill_attention``. ``since``: Clock.monotonic() when the first of them
    was begun, or its own booking if there were none.
    """

    __slots__ = (
        "_attention",
        "_booked_at",
        "_generated",
        "_kv",
        "_ledger",
        "_open",
        "_prefill",
        "_seconds",
        "ahead",
        "ahead_attention",
        "endpoint",
        "since",
    )

    def __init__(self, ledger: Ledger, kv_tokens: int, endpoint: Endpoint) -> None:
        self._ledger = ledger
        self._kv = kv_tokens = max(0, kv_tokens)
        ledger.requests += 1
        ledger.kv_tokens += kv_tokens
        ledger.rates = STALE
        if ledger.others is not None:
            ledger.others.touched()
        self.endpoint = endpoint
        endpoint.in_flight += 1
        self._prefill = 0
        self._attention = 0.0
        self._seconds = 0.0
        self._booked_at = inf
        self._generated = 0
        self._open = True
        self.ahead = 0
        self.ahead_attention = 0.0
        self.since = inf

    def book_prefill(
        self, tokens: int, *, context: int = 0, seconds: float = 0.0, expires_prefill_at: float | None = None
    ) -> None:
        """Book the prefill tokens, behind those that are queued: the engine computes the prompt.

        ``tokens``: prompt tokens that the engine has to compute. ``context``: tokens before them that the engine holds.
        ``seconds``: the estimated time of computing them. ``expires_prefill_at``: Clock.monotonic() from which the
        prefill counts as done although nothing shows it (an unstreamed answer); None: only ``first_token`` and
        ``settle`` end it. A prompt is computed once: a second booking, also after the first was given back, changes
        nothing.
        """
        if not self._open or self._booked_at < inf or tokens <= 0:
            return
        ledger = self._ledger
        now = ledger._monotonic()
        if now >= ledger._stale_at:
            ledger._advance(now)
        self.ahead, self.ahead_attention = ledger._prefill, ledger.prefill_attention
        self._booked_at = now
        self._prefill, self._seconds = tokens, seconds
        self._attention = attention = tokens * (max(0, context) + tokens / 2)
        ledger._prefill += tokens
        ledger.prefill_attention += attention
        ledger._share = ledger._share * exp((ledger._share_at - now) / LATELY) + seconds / LATELY
        ledger._share_at = now
        ledger.rates = STALE
        if self.ahead:
            self.since = ledger._begun
        else:
            self.since = now
            ledger._begun, ledger._most_done = now, seconds
        if ledger._head is None:
            ledger._head = self
        ledger._queue[self] = None
        if expires_prefill_at is not None:
            self.expire_prefill(expires_prefill_at)
        if (others := ledger.others) is not None:
            others.own_share = others.own_share * exp((others.own_share_at - now) / LATELY) + seconds / LATELY
            others.own_share_at = now
            others.touched()

    def expire_prefill(self, at: float) -> None:
        """The prefill counts as done from ``at`` (Clock.monotonic()) on, although nothing shows it."""
        if not self._prefill:
            return
        ledger = self._ledger
        ledger._made += 1
        heappush(ledger._expiring, (at, ledger._made, self))
        ledger._stale_at = min(ledger._stale_at, at)
        if len(ledger._expiring) > 2 * ledger.requests + SPARE_EXPIRIES:
            ledger._expiring = [entry for entry in ledger._expiring if entry[2]._prefill]
            heapify(ledger._expiring)

    def first_token(self) -> None:
        """Give back the prefill tokens: the prompt is computed."""
        if self._prefill:
            self._end_prefill(self._ledger._monotonic(), seen=True)

    def set_generated(self, tokens: int, *, exact: bool = False) -> None:
        """Set the answer's tokens so far, a total. A lower one changes nothing unless it is ``exact``: the engine's own
        count, after guesses from a stream's events."""
        tokens = max(0, tokens)
        if self._open and (tokens > self._generated or exact):
            self._ledger.kv_tokens += tokens - self._generated
            self._ledger.rates = STALE
            self._generated = tokens

    def settle(self) -> bool:
        """Give back all that is left: the request has ended, however. Returns whether this call did so."""
        if not self._open:
            return False
        self._open = False
        ledger = self._ledger
        now = ledger._monotonic()
        if self._prefill:
            self._end_prefill(now, seen=False)
        kv_tokens = self._kv + self._generated
        ledger.requests -= 1
        ledger.kv_tokens -= kv_tokens
        ledger.rates = STALE
        self.endpoint.in_flight -= 1
        if (others := ledger.others) is not None:
            others.own_settled += 1
            others.own_settled_tokens += kv_tokens
            others.touched()
        settled = ledger._settled
        while settled and settled[0][0] < now - SETTLED_KEPT:
            settled.popleft()
        settled.append((now, kv_tokens))
        expiring = ledger._expiring
        if expiring and expiring[0][2] is self:  # nothing is left that could expire
            heappop(expiring)
            ledger._stale_at = min(ledger._foreign.until, expiring[0][0] if expiring else inf)
        return True

    def _end_prefill(self, at: float, *, seen: bool) -> None:
        """Remove the prompt from the queue. If it was the first, the next one begins at ``at``.

        ``seen``: it is known to be computed, at ``at``.
        """
        ledger, others = self._ledger, self._ledger.others
        # The engine computes the first prompt of all; ours may wait behind another's.
        first = ledger._head is self and (others is None or self._booked_at <= others.first_booked)
        if seen:
            ledger.prefilled += self._seconds
            if others is not None:
                others.own_prefilled += self._seconds
            if first:
                estimated, real = ledger._lately
                estimated = PACE_MEMORY * estimated + self._seconds
                # Those of one step end at once.
                real = max(PACE_MEMORY * real + (at - ledger._begun), 1e-6)
                ledger._lately, ledger._pace = (estimated, real), estimated / real
        ledger.rates = STALE
        ledger._prefill -= self._prefill
        ledger.prefill_attention -= self._attention
        self._prefill = 0
        del ledger._queue[self]
        if ledger._head is self:
            ledger._head = head = next(iter(ledger._queue), None)
            if others is not None:
                if first:
                    others.own_ended = at
                ledger.find_first()
            else:
                ledger._begun = at
                if head is not None:
                    ledger._most_done = head._seconds
                else:
                    ledger._most_done = ledger.prefill_attention = 0.0  # the latter: a rest of rounding
        if others is not None:
            others.touched()


# 23 fields: the figures of a load, each of which is read or written for each request; an object of them is a look more
class Ledger:
    """The load of one engine core, as ``framework.Load`` shows it to plugins.

    ``half_life``: seconds after a scrape when its foreign load counts half. ``prefilled``: estimated seconds of our
    prompts that were computed there so far. ``step_tokens``: prompt tokens of one step of the engine. ``others``: what
    other processes of this gateway have booked there, which is in all of these figures (``joint.py``); None: there are
    none.

    ``rates`` are made when they are asked for, and whatever changes the load makes them stale: most requests change
    one ledger of many, and all are read for the next request.
    """

    def __init__(self, clock: Clock, half_life: float = 5.0) -> None:
        self._monotonic = clock.monotonic
        # Plain attributes, though only the ledger writes them: they are read for each candidate of each request.
        self.requests = 0
        self.kv_tokens = 0
        self.prefill_attention = 0.0
        self.prefilled = 0.0
        self.step_tokens = STEP_TOKENS
        self.rates = STALE
        self.others: Others | None = None
        self._scalars = UNPRICED
        self._prefill = 0
        # Prompts are computed in the order of their booking: the queue, its first, when that was begun, its seconds.
        self._queue: dict[Reservation, None] = {}
        self._head: Reservation | None = None
        self._begun = 0.0
        self._most_done = 0.0
        # Estimated and real seconds of the last prompts: queued work is counted in estimated seconds.
        self._lately = 1.0, 1.0
        self._pace = 1.0
        self._share = self._share_at = 0.0
        self._expiring: list[tuple[float, int, Reservation]] = []
        self._made = 0
        self._settled: deque[tuple[float, int]] = deque(maxlen=MOST_SETTLED)
        self._foreign = Foreign(half_life)
        # When a kept figure becomes wrong by time alone: something expires, or has faded.
        self._stale_at = inf

    def now(self) -> float:
        """Clock.monotonic()."""
        return self._monotonic()

    def sums(self, now: float) -> Sums:
        """What is done is counted from the beginning of the first prompt, up to what that prompt takes: one that is
        stuck does not make those behind it vanish. If the last prompts took half of their estimate, each second counts
        as two."""
        if now >= self._stale_at:
            self._advance(now)
        done = (now - self._begun) * self._pace
        if done > self._most_done:
            done = self._most_done
        foreign = self._foreign
        return (
            self.requests + foreign.requests,
            self._prefill,
            self.prefill_attention,
            done,
            self.kv_tokens + foreign.kv_tokens,
            self._share * exp((self._share_at - now) / LATELY) if self._share else 0.0,
        )

    def rates_at(self, now: float) -> Rates:
        """``rates``, which it makes anew where they are stale."""
        if now < self.rates.until:
            return self.rates
        if now >= self._stale_at:
            self._advance(now)
        token, quadratic, step, step_request, kv_token, overhead, _, _, step_tokens = self._scalars
        waiting, foreign = self._prefill, self._foreign
        running = self.requests + foreign.requests
        batch = step_request * running + kv_token * (self.kv_tokens + foreign.kv_tokens)
        # Not Rates(...), which is a call of Python more.
        self.rates = rates = tuple.__new__(
            Rates,
            (
                self._stale_at,
                overhead + (1 + waiting / step_tokens) * batch,
                batch / step_tokens,
                step + batch,
                running,
                token,
                quadratic,
                waiting,
                waiting * token + quadratic * self.prefill_attention if waiting else 0.0,
                self._begun,
                self._pace,
                self._most_done,
                self._share,
                self._share_at,
            ),
        )
        return rates

    def price(self, scalars: Scalars) -> None:
        """The cost model of the core is this now."""
        self._scalars, self.step_tokens = scalars, scalars.step_tokens
        self.rates = STALE

    @property
    def prefill_tokens(self) -> int:
        self.refresh()
        return self._prefill

    @property
    def unallocated_tokens(self) -> int:
        """Prefill tokens for which the engine has not allocated KV memory yet, as far as we know.

        Those are ``prefill_tokens`` less what is computed of the first prompt by now. Its last step does not count as
        computed: the engine reports what a step evicted only after the step.
        """
        if not self._prefill:  # for most candidates of a request
            return 0
        now = self._monotonic()
        if now >= self._stale_at:
            self._advance(now)
        waiting, head, others = self._prefill, self._head, self.others
        first, step = 0 if head is None else head._prefill, self.step_tokens
        if others is not None and others.first_booked < self.first_own:
            first = others.first_tokens
        if first > step and self._most_done > 0:
            done = min(1.0, (now - self._begun) * self._pace / self._most_done)
            waiting -= max(0, int(done * first) - step)
        return waiting

    @property
    def foreign_requests(self) -> float:
        self.refresh()
        return self._foreign.requests

    @property
    def foreign_kv_tokens(self) -> float:
        self.refresh()
        return self._foreign.kv_tokens

    def apply_scrape(self, metrics: EngineMetrics, asked: float) -> None:
        """Estimate foreign load from a scrape that was sent at ``asked`` (Clock.monotonic()) and is complete now.

        The engine took its figures at an unknown moment between ``asked`` (less its own lag) and now. Every request of
        ours that was live in between may be in them, so all of these are subtracted: a request that ended during the
        scrape never becomes foreign load, and one that has not reached the engine yet makes the estimate too low for a
        second, never too high. Blocks are allocated whole, so each of ours may hold one block more than its tokens
        fill.
        """
        if self.others is not None:
            self.others.catch_up()
        settled = self._settled
        while settled and settled[0][0] < asked - GAUGE_LAG:
            settled.popleft()
        ours = self.requests + len(settled)
        ours_kv = self.kv_tokens + sum(kv for _, kv in settled) + ours * metrics.block_size
        requests = float(max(0, metrics.running + metrics.waiting - ours))
        kv_tokens = max(0.0, metrics.kv_usage * metrics.kv_capacity - ours_kv)
        self._foreign.scraped(requests, kv_tokens, self._monotonic())
        self._stale_at = 0.0
        self.rates = STALE

    def __repr__(self) -> str:
        return f"<Ledger requests={self.requests} prefill={self._prefill} kv={self.kv_tokens}>"

    @property
    def own_requests(self) -> int:
        """Of ``requests``, those that this process has sent."""
        return self.requests if self.others is None else self.requests - self.others.requests

    @property
    def own_tokens(self) -> tuple[int, int]:
        """Of ``prefill_tokens`` and ``kv_tokens``, those of this process."""
        self.refresh()
        if self.others is None:
            return self._prefill, self.kv_tokens
        return self._prefill - self.others.prefill_tokens, self.kv_tokens - self.others.kv_tokens

    @property
    def first_own(self) -> float:
        """Clock.monotonic() when the first of this process's prompts that wait there was booked; ``inf``: none does."""
        return inf if self._head is None else self._head._booked_at

    def find_first(self) -> None:
        """Among others: find anew which prompt the engine computes, and since when."""
        others, head = self.others, self._head
        assert others is not None
        if head is not None and head._booked_at <= others.first_booked:
            begun, self._most_done = head._booked_at, head._seconds
        elif others.prefill_tokens:
            begun, self._most_done = others.first_booked, others.first_seconds
        else:
            begun = self._most_done = self.prefill_attention = 0.0
        self._begun = max(begun, others.ended, others.own_ended)

    def refresh(self) -> None:
        """Bring up to date what time alone changes: for figures that are read one by one."""
        if self._stale_at < inf and (now := self._monotonic()) >= self._stale_at:
            self._advance(now)

    def _advance(self, now: float) -> None:
        """Drop what has expired and fade foreign load."""
        self.rates = STALE
        while self._expiring and self._expiring[0][0] <= now:
            at, _, reservation = heappop(self._expiring)
            if reservation._prefill:
                reservation._end_prefill(at, seen=False)
                self.prefilled += reservation._seconds
                if self.others is not None:
                    self.others.own_prefilled += reservation._seconds
        if now >= self._foreign.until:
            self._foreign.fade(now)
        self._stale_at = min(self._foreign.until, self._expiring[0][0] if self._expiring else inf)
