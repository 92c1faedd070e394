"""Who is refused, and what he is told.

A model's queue is bounded by requests, by tokens and by bytes, and each tenant's part of it by requests. If a newcomer
exceeds a bound, ``Lines.worst`` goes: of the lowest band, of the tenant with most work waiting there, whoever would be
served last, who may be the newcomer. Refused at once are also

- who could not be placed before its deadline wherever it waits: it had better ask elsewhere, or later;
- bands below 0, where something has waited for ``SATURATED_AFTER`` seconds without a break.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from gateway.errors import NoEndpoint, Saturated
from gateway.flow.drain import Drain
from gateway.flow.entry import Entry
from gateway.flow.settings import QueueSettings
from gateway.flow.waiters import Waiters
from gateway.framework import Endpoint

SATURATED, LATE, QUEUE_FULL, EXPIRED = "saturated", "late", "queue-full", "expired"
"""Why a request is refused: it may be shed, and others have waited for long; it could not be placed before its
deadline; too much waits already; its deadline came."""

SATURATED_AFTER = 10.0
"""Seconds of waiting without a break: a burst is over sooner."""

CERTAIN = 0.5
"""Part of the work ahead that surely has to be done before: costs are predicted, and other endpoints may help."""

MOST_DROPPED = 64
"""Requests that are dropped for one newcomer, which has more tokens or bytes than each of them: some milliseconds."""

FRESH = 0.05
"""Seconds for which the sums over all tenants hold that a Retry-After is made of: thousands may be refused at once."""


class Shed:
    """``model``: its name."""

    def __init__(self, model: str, settings: QueueSettings, waiters: Waiters, drain: Drain) -> None:
        self._model = model
        self._settings = settings
        self._waiters = waiters
        self._lines = waiters.lines
        self._drain = drain
        self._summed_at = -inf
        self._bands: dict[int, _Band] = {}

    def newcomer(self, entry: Entry, ahead: Mapping[int, float], up: Sequence[Endpoint], now: float) -> None:
        """Whether it may wait for a place among others. ``ahead``: its request's. ``up``: the model's endpoints that
        are. Raises Saturated."""
        left = entry.deadline - now
        if left <= 0 or (ahead and up and all(CERTAIN * ahead.get(one.slot, 0.0) > left for one in up)):
            raise self._saturated(
                entry, LATE, f"this could not be served in the {max(0.0, left):.3g} s left for it", now
            )
        if entry.request.band < 0 and now >= self._waiters.since + SATURATED_AFTER:
            raise self._saturated(entry, SATURATED, "requests of low priority are refused while others wait", now)

    def crowded_out(self, entry: Entry) -> Entry | None:
        """Who has to go, now that ``entry`` waits; None: nobody. To be asked again after each that went."""
        lines, settings, tenant = self._lines, self._settings, entry.request.tenant.name
        if entry.tokens > settings.max_tokens or entry.size > settings.max_bytes:
            return entry
        if lines.of_tenant(tenant).requests > settings.per_tenant:
            return lines.worst(tenant)
        total = lines.total
        if (
            total.requests > settings.max_requests
            or total.tokens > settings.max_tokens
            or total.size > settings.max_bytes
        ):
            return lines.worst()
        return None

    def full(self, entry: Entry, now: float) -> Saturated:
        """For one that was crowded out."""
        return self._saturated(entry, QUEUE_FULL, "no more may wait", now)

    def expired(self, entry: Entry, now: float, *, down: bool) -> NoEndpoint | Saturated:
        """For one whose time is up. ``down``: no endpoint is up."""
        waited = f"within {now - entry.began:.3g} s of waiting"
        if down:
            seconds = self._retry_after(entry, now)
            return NoEndpoint(f"No endpoint of model {self._model!r} was up {waited}.", retry_after=seconds)
        return self._saturated(entry, EXPIRED, f"no engine had room {waited}", now)

    def _saturated(self, entry: Entry, reason: str, why: str, now: float) -> Saturated:
        seconds = self._retry_after(entry, now)
        return Saturated(
            f"Model {self._model!r} is full: {why}. Try again in {seconds:.0f} s.", reason=reason, retry_after=seconds
        )

    def _retry_after(self, entry: Entry, now: float) -> float:
        """By the work that waits of higher bands and of its own tenant, and by the part of what is served that its
        tenant gets."""
        if now >= self._summed_at + FRESH:
            self._summed_at, self._bands = now, {}
            for (band, _), total in self._lines.by_band().items():
                summed = self._bands.setdefault(band, _Band())
                summed.seconds += total.seconds
                summed.tenants += 1
        band, tenant = entry.request.band, entry.request.tenant
        work = sum(summed.seconds for other, summed in self._bands.items() if other > band)
        work += self._lines.of_tenant(tenant.name).seconds
        own = self._bands.get(band)
        return self._drain.retry_after(work, 1.0 if own is None else min(1.0, tenant.weight / own.tenants), now)


class _Band:
    """What waits in one band."""

    __slots__ = ("seconds", "tenants")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.tenants = 0
