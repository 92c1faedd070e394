"""Whether an endpoint has room for a request now, and if not, for which of its bounds: the *binding reason*.

    prefill   queued prefill seconds, less what is done of them    < window
    kv        live + new + expected output                        <= kv * capacity       where the capacity is known
    step      step_seconds(running + 1, live + new)               <= bound on a step

    live  = tokens of our requests, prefixes that they share counted once, and those of others
    new   = prompt tokens that no live request has there
    bound = the request's TPOT objective, if the endpoint can meet it at all; else ``step`` empty steps

All but the last two columns' settings come from the ledger, which is exact for what we sent. Scrapes correct the load
of others only, and that takes away at most half of each bound. So a wrong scrape, or one that never comes, can neither
open nor close an endpoint. One with nothing of this model's in flight, and nothing of another process of this gateway,
always has room: no request is too large to be served, and no queue stands still.

A leg that computes the prompt asks for ``prefill``, one that decodes for ``kv`` and ``step``; a leg of another kind
asks for nothing. During a slow start ``warmth`` scales the window and ``kv``. The factor of ``window.py`` scales the
window: late first tokens tell how prompts wait, and nothing of memory and of decode steps.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.flow.live_kv import LiveKv
from gateway.flow.settings import QueueSettings
from gateway.flow.window import Windows
from gateway.framework import Endpoint, Plan, Request
from gateway.framework.request import DECODE, PREFILL
from gateway.kvcache.index.keys import BlockKeys
from gateway.placement.placing import Placeable

FOREIGN = 0.5
"""Share of a bound that the load of others can take away at the most. An engine whose others need more is slower than
predicted, which ``window.py`` sees."""


class Fullness(NamedTuple):
    """How full an endpoint is, by each bound: 1 and more is full. ``kv`` is 0 where the capacity is not known."""

    prefill: float
    kv: float
    step: float

    @property
    def saturation(self) -> float:
        return max(self)

    @property
    def binding(self) -> str:
        """The reason of the fullest, if it is full; else empty."""
        most = max(self)
        return self._fields[self.index(most)] if most >= 1 else ""


class Room:
    """Of one model's endpoints. Nothing is kept here but settings: all is read when it is asked for."""

    def __init__(self, settings: QueueSettings, live: LiveKv, windows: Windows) -> None:
        self._settings = settings
        self._live = live
        self._windows = windows

    def lacks(self, call: Placeable, plan: Plan, now: float) -> tuple[Endpoint | None, str]:
        """The first endpoint of ``plan`` without room for its leg, and its reason; (None, ""): all have room.

        ``now``: Clock.monotonic().
        """
        request = call.request
        if len(plan.legs) == 1:
            endpoint = plan.decode
            reason = self.binding(endpoint, request, call.keys, now)
            return (endpoint, reason) if reason else (None, "")
        for kind, endpoint in plan.legs:
            if kind not in (PREFILL, DECODE):
                continue
            whole = kind == DECODE and plan.prefill is None
            reason = self.binding(endpoint, request, call.keys, now, leg="" if whole else kind)
            if reason:
                return endpoint, reason
        return None, ""

    def binding(self, endpoint: Endpoint, request: Request, keys: BlockKeys, now: float, *, leg: str = "") -> str:
        """Why there is no room for the leg of this kind there; empty: there is. ``leg`` empty: one leg is all of it."""
        if not endpoint.in_flight and (not endpoint.load.requests or free_of_others(endpoint)):
            return ""
        load, warm = endpoint.load, endpoint.warmth
        factor = self._windows.factor(endpoint) if self._windows.narrowed else 1.0
        if leg != DECODE:
            rates = load.rates if now < load.rates.until else load.rates_at(now)
            if rates.queued and queued_seconds(endpoint, now) >= self._settings.window * factor * warm:
                return "prefill"
        if leg == PREFILL:
            return ""
        # What prompts share is looked up only where they would not have room if they shared nothing.
        if not self._binds(endpoint, request, load.kv_tokens, request.prompt_tokens):
            return ""
        ours = load.kv_tokens - self._live.saved(endpoint)
        return self._binds(endpoint, request, ours, request.prompt_tokens - self._live.live(endpoint, keys))

    def _binds(self, endpoint: Endpoint, request: Request, ours: int, new: int) -> str:
        """Why there is no room to decode it. ``ours``: KV tokens of our requests there; ``new``: those that it adds."""
        load, scalars, slo = endpoint.load, endpoint.cost.scalars, request.slo
        capacity = endpoint.metrics.kv_capacity
        # What others have is looked up only where as much of it as may count would not fit.
        if capacity > 0:
            bound = self._settings.kv * capacity * endpoint.warmth
            left = bound - ours - new - request.expected_output
            if left < FOREIGN * bound and left < load.foreign_kv_tokens:
                return "kv"
        bound = self._settings.step * scalars.step
        # An objective that the endpoint misses even with this request alone binds nothing: it would let one request in
        # at a time, and still be missed.
        if slo is not None and slo.tpot is not None and scalars.step_seconds(1, request.prompt_tokens) <= slo.tpot:
            bound = slo.tpot
        bound -= scalars.step
        left = bound - scalars.step_request * (load.requests + 1) - scalars.kv_token * (ours + new)
        if left < FOREIGN * bound:
            others = scalars.step_request * load.foreign_requests + scalars.kv_token * load.foreign_kv_tokens
            if left < others:
                return "step"
        return ""

    def fullness(self, endpoint: Endpoint, now: float) -> Fullness:
        """As for a request that needs nothing itself and has no objectives: for metrics and explanations."""
        load, settings, scalars = endpoint.load, self._settings, endpoint.cost.scalars
        warm = max(endpoint.warmth, 1e-9)
        window = settings.window * self._windows.factor(endpoint) * warm
        if not endpoint.in_flight and free_of_others(endpoint):
            return Fullness(0.0, 0.0, 0.0)
        ours, foreign = load.kv_tokens - self._live.saved(endpoint), load.foreign_kv_tokens
        capacity, kv = endpoint.metrics.kv_capacity, 0.0
        if capacity > 0:
            bound = settings.kv * capacity * warm
            kv = (ours + min(foreign, FOREIGN * bound)) / bound
        bound = max((settings.step - 1) * scalars.step, 1e-9)
        others = scalars.step_request * load.foreign_requests + scalars.kv_token * foreign
        batch = scalars.step_request * load.requests + scalars.kv_token * ours
        step = (batch + min(others, FOREIGN * bound)) / bound
        return Fullness(queued_seconds(endpoint, now) / window, kv, step)


def free_of_others(endpoint: Endpoint) -> bool:
    """Whether nothing that another process of this gateway has sent is in flight there."""
    return endpoint.load.requests == endpoint.load.own_requests


def queued_seconds(endpoint: Endpoint, now: float) -> float:
    """Prompts of ours that are queued there, less what is done of them, in seconds from ``now``."""
    rates = endpoint.load.rates
    if now >= rates.until:
        rates = endpoint.load.rates_at(now)
    if not rates.queued:
        return 0.0
    return max(0.0, rates.queued - min((now - rates.begun) * rates.pace, rates.most_done))
