"""What a tenant or a key uses of its limits, and the most that it may."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from gateway.tenants.gcra import CELLS, Bucket
from gateway.tenants.limit_settings import LimitSettings
from gateway.tenants.places import Cells, Limit, MeterPlace, OwnMeterPlace

T = TypeVar("T")

SOON = 1.0
"""Seconds to wait where a place is free as soon as another request has ended, which nobody can tell."""


class Refusal(NamedTuple):
    """Why a request is refused. ``limit``: the word in metrics. ``reason``: the one that the client sees. ``unit``: of
    ``most``, ``used`` and ``asked``. ``wait``: seconds after which another try may pass."""

    limit: str
    reason: str
    unit: str
    most: int
    used: int
    asked: int
    wait: float


def of_model(rules: Mapping[str, T], model: str) -> tuple[str, T] | None:
    """The rule for ``model``, and its pattern: the exact name, else the longest ``beginning*``; None: there is none."""
    if model in rules:
        return model, rules[model]
    found = [pattern for pattern in rules if pattern.endswith("*") and model.startswith(pattern[:-1])]
    if not found:
        return None
    longest = max(found, key=len)
    return longest, rules[longest]


class Meter:
    """The limits of a tenant or a key, for all models or some, and what is used of them now. ``whose``: in words, for
    error messages. ``settings``: what is configured; ``become`` changes it. ``place``: where it is kept what is used,
    and how much of each limit may be used there. ``now``: Clock.monotonic()."""

    __slots__ = ("place", "requests", "settings", "tokens", "whose")

    def __init__(self, whose: str, settings: LimitSettings, now: float, place: MeterPlace | None = None) -> None:
        self.whose = whose
        self.place: MeterPlace = OwnMeterPlace(CELLS) if place is None else place
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None
        self.become(settings, now)

    def become(self, settings: LimitSettings, now: float) -> None:
        """Change what is allowed. What is used stays used."""
        self.settings, place = settings, self.place
        place.want(settings)
        self.requests = self._bucket(self.requests, settings.requests_per_minute, Limit.REQUESTS, place.requests, now)
        self.tokens = self._bucket(self.tokens, settings.tokens_per_minute, Limit.TOKENS, place.tokens, now)

    def look(self, now: float) -> None:
        """Before anything is read of it or begun."""
        place = self.place
        if place.look():
            self.become(self.settings, now)
        elif place.divided:
            for limit, bucket in ((Limit.REQUESTS, self.requests), (Limit.TOKENS, self.tokens)):
                if bucket is not None:
                    bucket.hold(place.part(limit, bucket.limit), now)
                    bucket.elsewhere, bucket.even = place.elsewhere(limit), place.even(bucket.limit)

    def lacks(self, tokens: int, now: float, *, begins: bool) -> bool:
        """Whether a request would be refused only since others have parts of the limits that they may not need. They
        are asked for these. ``tokens``: that it takes. ``begins``: it is not yet among those that have begun."""
        place, settings, lacks = self.place, self.settings, False
        for limit, whole, used, more in (
            (Limit.REQUESTS, settings.requests_per_minute, _used(self.requests, now), begins),
            (Limit.TOKENS, settings.tokens_per_minute, _used(self.tokens, now), max(tokens, begins)),
            (Limit.CONCURRENT, settings.concurrent, place.concurrent.value, begins),
            (Limit.TOKENS_IN_FLIGHT, settings.tokens_in_flight, place.tokens_in_flight.value, tokens),
            (Limit.QUEUED, settings.queued, place.queued.value, 0),
        ):
            if whole is not None and place.lacks(limit, whole, used, more):
                lacks = True
        return lacks

    def waits(self, tokens: int, *, begins: bool, by: int = 1) -> None:
        """A request that ``lacks`` waits; ``by`` -1: no more."""
        for limit, more in (
            (Limit.REQUESTS, begins),
            (Limit.TOKENS, max(tokens, begins)),
            (Limit.CONCURRENT, begins),
            (Limit.TOKENS_IN_FLIGHT, tokens),
        ):
            self.place.waits(limit, by * more)

    def idle(self, now: float) -> bool:
        """Whether it may be forgotten: a new one would allow no more."""
        return not (
            self.place.concurrent.value
            or (self.requests is not None and self.requests.used(now))
            or (self.tokens is not None and self.tokens.used(now))
        )

    def refuses_begin(self, estimate: int, now: float) -> Refusal | None:
        """Why another request may not begin. ``estimate``: its prompt's tokens, roughly.

        Tokens are not counted yet, and the estimate may be far too high. So only who has less than half of it left is
        refused: this protects the tokenizer from prompts that would be refused behind it.
        """
        place, most = self.place, self.settings.concurrent
        if self.requests is not None and (wait := self.requests.wait(1, now)):
            return self._refusal("requests", "requests per min (RPM)", self.requests, 1, wait, now)
        if most is not None and (under_way := place.concurrent.value) + 1 > place.part(Limit.CONCURRENT, most):
            under_way += round(place.elsewhere(Limit.CONCURRENT))
            return Refusal("concurrent", "concurrent", "concurrent requests", most, under_way, 1, SOON)
        if self.tokens is not None and self.tokens.wait(min(estimate, self.tokens.limit) // 2 or 1, now):
            asked = max(1, min(estimate, self.tokens.limit))
            wait = self.tokens.wait(asked, now)
            return self._refusal("tokens", "tokens per min (TPM)", self.tokens, asked, wait, now)
        return None

    def refuses_tokens(self, tokens: int, now: float) -> Refusal | None:
        """Why a request that has begun may not take ``tokens``: more than a limit has are let through once all of it is
        free."""
        if self.tokens is not None and (wait := self.tokens.wait(tokens, now)):
            asked = min(tokens, self.tokens.limit)
            return self._refusal("tokens", "tokens per min (TPM)", self.tokens, asked, wait, now)
        place, most = self.place, self.settings.tokens_in_flight
        if most is None:
            return None
        part = place.part(Limit.TOKENS_IN_FLIGHT, most)
        used = place.tokens_in_flight.value
        if used + min(tokens, max(part, place.even(most))) > part:
            used += round(place.elsewhere(Limit.TOKENS_IN_FLIGHT))
            return Refusal("tokens-in-flight", "tokens", "tokens in flight", most, used, min(tokens, most), SOON)
        return None

    def refuses_queueing(self) -> Refusal | None:
        """Why a request may not wait in a queue."""
        place, most = self.place, self.settings.queued
        if most is None or (waiting := place.queued.value) + 1 <= place.part(Limit.QUEUED, most):
            return None
        waiting += round(place.elsewhere(Limit.QUEUED))
        return Refusal("queued", "requests", "queued requests", most, waiting, 1, SOON)

    def _bucket(
        self, before: Bucket | None, whole: int | None, limit: Limit, cells: Cells, now: float
    ) -> Bucket | None:
        if whole is None:
            return None
        bucket = before
        if bucket is None:
            bucket = Bucket(whole, now, cells)
        bucket.limit, bucket.cells = whole, cells
        bucket.hold(self.place.part(limit, whole), now)
        return bucket

    @staticmethod
    def _refusal(word: str, unit: str, bucket: Bucket, asked: int, wait: float, now: float) -> Refusal:
        return Refusal(word, word, unit, bucket.limit, round(bucket.shown(now)), asked, wait)


def _used(bucket: Bucket | None, now: float) -> float:
    return 0.0 if bucket is None else bucket.used(now)
