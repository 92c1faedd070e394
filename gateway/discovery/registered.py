"""Endpoints that register themselves over the admin listener, for a time or until they are taken back.

They are kept in memory: a reload keeps them, and a process that is started anew hears of those that register again, as
an engine with a ``ttl`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.config.decode import decode
from gateway.config.origin import Origin
from gateway.discovery.source import MOST_ENDPOINTS
from gateway.errors import ConfigError
from gateway.fleet.address import Location
from gateway.fleet.settings import EndpointSettings
from gateway.framework import Clock

MAX_TTL = 86_400.0
"""Seconds: what is to stay longer than a day without a word from it is registered without a ``ttl``."""


@dataclass(frozen=True, slots=True)
class Registration:
    """``until``: Clock.monotonic() at which it ends; None: never."""

    model: str
    endpoint: EndpointSettings
    until: float | None = None

    @property
    def name(self) -> str:
        """By which it is taken back: as given, else HOST:PORT."""
        return self.endpoint.name or Location.of(self.endpoint.url).authority


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a request says beside the endpoint's own fields. ``model``: empty: the only one."""

    model: str = ""
    ttl: float | None = None

    def __post_init__(self) -> None:
        if self.ttl is not None and not 1.0 <= self.ttl <= MAX_TTL:
            raise ValueError(f"ttl must be in 1..{MAX_TTL:g} seconds")


class Registered:
    """``changed``: called when another time than ``until_next`` said may be the next one to end."""

    def __init__(self, clock: Clock, changed: Callable[[], None]) -> None:
        self._clock = clock
        self._changed = changed
        self._registrations: dict[tuple[str, Location], Registration] = {}

    def put(self, value: Mapping[str, Any], models: Collection[str]) -> tuple[Registration, Registration | None]:
        """Register what a request's body says: an endpoint's fields, ``model`` and ``ttl``. The same URL of a model
        again renews it. Returns the registration, and the one that it replaces. Raises ConfigError."""
        origin = Origin()
        asked = decode(_Asked, {key: value[key] for key in ("model", "ttl") if key in value}, (), origin)
        fields = {key: item for key, item in value.items() if key not in ("model", "ttl")}
        endpoint = decode(EndpointSettings, fields, (), origin)
        model = asked.model or (next(iter(models)) if len(models) == 1 else "")
        if model not in models:
            raise origin.error(("model",), f"there is no model {model[:128]!r}" if model else "this key is required")
        until = None if asked.ttl is None else self._clock.monotonic() + asked.ttl
        key, new = (model, Location.of(endpoint.url)), Registration(model, endpoint, until)
        if key not in self._registrations and len(self._registrations) >= MOST_ENDPOINTS:
            raise ConfigError(f"{MOST_ENDPOINTS} endpoints have registered themselves: there is no room for more")
        before, self._registrations[key] = self._registrations.get(key), new
        self._changed()
        return new, before

    def remove(self, name: str) -> list[Registration]:
        """Take back all of this name; returns them."""
        gone = [key for key, one in self._registrations.items() if one.name == name]
        return [self._registrations.pop(key) for key in gone]

    def discard(self, registration: Registration, before: Registration | None) -> None:
        """Take back this one, unless it was replaced; ``before``: what it has replaced, which is there again."""
        key = (registration.model, Location.of(registration.endpoint.url))
        if self._registrations.get(key) != registration:
            return
        if before is None:
            del self._registrations[key]
        else:
            self._registrations[key] = before
            self._changed()

    def expire(self) -> list[Registration]:
        """Take back all whose time is over; returns them."""
        now = self._clock.monotonic()
        gone = [key for key, one in self._registrations.items() if one.until is not None and one.until <= now]
        return [self._registrations.pop(key) for key in gone]

    def until_next(self) -> float | None:
        """Seconds until the next one's time is over; None: no time is running."""
        ends = [one.until for one in self._registrations.values() if one.until is not None]
        return max(min(ends) - self._clock.monotonic(), 0.0) if ends else None

    def left(self, one: Registration) -> float | None:
        """Seconds until its time is over; None: it has none."""
        return None if one.until is None else max(one.until - self._clock.monotonic(), 0.0)

    def keep(self, models: Collection[str]) -> None:
        """Drop those of models that are not among these."""
        self._registrations = {key: one for key, one in self._registrations.items() if one.model in models}

    def all(self) -> Sequence[Registration]:
        return list(self._registrations.values())

    def of(self, model: str) -> list[EndpointSettings]:
        return [one.endpoint for one in self._registrations.values() if one.model == model]


def of_body(content: Any) -> Mapping[str, Any]:
    """Raises ConfigError."""
    if not isinstance(content, dict):
        raise ConfigError("the body must be a JSON object: an endpoint's fields, and 'model'")
    return content
