"""What every source of endpoints has in common: how it tells what it finds, and what it makes of an address.

Beside the lists, ``Found`` takes the entries that are wrong, in words: a source leaves these out, and names them. What
a source tells is a whole list each time; it need not notice whether that differs from the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from gateway.discovery.settings import DiscoverSettings
from gateway.fleet.settings import EndpointSettings, KvEventsSettings


class Found(Protocol):
    def __call__(self, endpoints: Sequence[EndpointSettings], wrong: Sequence[str] = (), problem: str = "", /) -> None:
        """The source's whole list. ``wrong``: its entries that cannot be used, with the reason, a line each.
        ``problem``: why a part of the source cannot be read now; the list has what is known of that."""


Lost = Callable[[str], None]
"""Called with the reason why a source cannot be read now: what it told last stays."""


class Source(Protocol):
    """One entry of ``models[].discover``."""

    async def follow(self, found: Found, lost: Lost) -> None:
        """For ever: tell each list, also an empty one that the source affirms, or why it cannot be read. It ends only
        by being cancelled, and raises nothing else."""


MOST_ENDPOINTS = 2_000
"""Endpoints of one place, the wrong ones included: beyond what one gateway can serve. A mistaken answer must not make a
million engines to ask: to take up 2,000 new ones takes 3.4 s of CPU time, 1,000 only 1.1 s, without their probes."""

MAX_NAME = 253
"""Characters of a name: as of a host, and of a pod."""


def endpoint_of(settings: DiscoverSettings, host: str, port: int, **given: Any) -> EndpointSettings:
    """The endpoint at this address. ``host``: a name or an IP address, IPv6 with or without brackets. ``given``: what
    the source says of it: fields of ``EndpointSettings`` but the URL, or ``scheme``; None where it says nothing.
    ``labels`` are added to those of ``settings``. Raises ValueError if it cannot be one.
    """
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    scheme = given.pop("scheme", None) or settings.scheme
    return with_defaults(settings, {**given, "url": f"{scheme}://{host}:{port}"})


def with_defaults(settings: DiscoverSettings, given: Mapping[str, Any]) -> EndpointSettings:
    """An endpoint with these fields, and with those of ``settings`` where one is missing or None. Raises ValueError."""
    said = {name: value for name, value in given.items() if value is not None}
    if (name := said.get("name")) is not None and not (name.isprintable() and 0 < len(name) <= MAX_NAME):
        raise ValueError(f"name: {name[:MAX_NAME]!r} must be 1 to {MAX_NAME} printable characters")
    secure = said["url"].lower().startswith("https://")
    endpoint = EndpointSettings(
        **{
            "role": settings.role,
            "api_key": settings.api_key,
            "tls": settings.tls if secure else None,
            "ranks": settings.ranks,
            "kv_events": settings.kv_events,
            "cost": settings.cost,
            **said,
            "labels": {**settings.labels, **said.get("labels", {})},
        }
    )
    return replace(endpoint, kv_events=_filled(endpoint.kv_events, endpoint))


def _filled(pattern: KvEventsSettings, endpoint: EndpointSettings) -> KvEventsSettings:
    """``{host}`` and ``{port}`` replaced. Raises ValueError."""
    values = (pattern.endpoint, pattern.replay, pattern.topic)
    if not any(value is not None and "{" in value for value in values):
        return pattern
    authority = endpoint.url.partition("://")[2].rstrip("/")
    host, _, port = authority.rpartition(":")

    def fill(value: str | None) -> str | None:
        return None if value is None else value.replace("{host}", host).replace("{port}", port)

    return replace(
        pattern, endpoint=fill(pattern.endpoint), replay=fill(pattern.replay), topic=fill(pattern.topic) or ""
    )
