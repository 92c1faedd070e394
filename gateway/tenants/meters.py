"""What a tenant or a key uses of its limits, and the most that it may."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from gateway.tenants.gcra import CELLS, Bucket
from gateway.tenants.limit_settings import LimitSettings
from gateway.tenants.places import Cells, MeterPlace, OwnMeterPlace

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
    error messages. ``settings``: what is configured; ``become`` changes it. ``allowed``: what is allowed here, which is
    less where ``place`` is for a share of it only. ``now``: Clock.monotonic()."""

    __slots__ = ("allowed", "place", "requests", "settings", "tokens", "whose")

    def __init__(self, whose: str, settings: LimitSettings, now: float, place: MeterPlace | None = None) -> None:
        self.whose = whose
        self.place: MeterPlace = OwnMeterPlace(CELLS) if place is None else place
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None
        self.become(settings, now)

    def become(self, settings: LimitSettings, now: float) -> None:
        """Change what is allowed. What is used stays used."""
        self.settings, place = settings, self.place
        self.allowed = allowed = settings.part(place.share)
        self.requests = _bucket(self.requests, allowed.requests_per_minute, now, place.requests)
        self.tokens = _bucket(self.tokens, allowed.tokens_per_minute, now, place.tokens)

    def look(self, now: float) -> None:
        """Before anything is read of it or begun."""
        if self.place.look():
            self.become(self.settings, now)

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
        most = self.allowed.concurrent
        if self.requests is not None and (wait := self.requests.wait(1, now)):
            return self._refusal("requests", "requests per min (RPM)", self.requests, 1, wait, now)
        if most is not None and (under_way := self.place.concurrent.value) >= most:
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
        most = self.allowed.tokens_in_flight
        if most is not None and (used := self.place.tokens_in_flight.value) + min(tokens, most) > most:
            return Refusal("tokens-in-flight", "tokens", "tokens in flight", most, used, min(tokens, most), SOON)
        return None

    def refuses_queueing(self) -> Refusal | None:
        """Why a request may not wait in a queue."""
        most = self.allowed.queued
        if most is None or (waiting := self.place.queued.value) < most:
            return None
        return Refusal("queued", "requests", "queued requests", most, waiting, 1, SOON)

    @staticmethod
    def _refusal(word: str, unit: str, bucket: Bucket, asked: int, wait: float, now: float) -> Refusal:
        return Refusal(word, word, unit, bucket.limit, round(bucket.used(now)), asked, wait)


def _bucket(before: Bucket | None, limit: int | None, now: float, cells: Cells) -> Bucket | None:
    if limit is None:
        return None
    if before is None:
        return Bucket(limit, now, cells)
    before.cells = cells
    before.become(limit, now)
    return before
