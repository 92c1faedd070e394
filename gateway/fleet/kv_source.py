"""Where an endpoint's KV events come from: as configured, or as its engine reports.

Rules: an address that an engine binds to (``*``, ``0.0.0.0``, ``::``) becomes the host of its URL. A configured
address is that of rank 0; rank r listens r ports higher. An engine reports an address for each rank. What cannot be
subscribed to is None, never an error. An engine that connects to us uses one port of ours for each rank, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.fleet.settings import MAX_RANKS, KvEventsSettings

WILDCARDS = frozenset({"*", "0.0.0.0", "::", "[::]", ""})
"""Hosts that mean all addresses of the engine's machine."""

MAX_ADDRESS = 512
"""Characters of an address that an engine may report; a host name has at most 253."""


@dataclass(frozen=True, slots=True)
class KvSource:
    """``address`` of the PUB socket, ``replay`` of the ROUTER socket or None, ``topic`` to subscribe to.

    ``address`` is None if the engine connects to us: to the port ``offset`` above our first, with exactly this topic.
    ``rank``: the engine's own number of the rank; None: it reports none.
    """

    address: str | None
    replay: str | None = None
    topic: str = ""
    offset: int = 0
    rank: int | None = None


def find_source(
    settings: KvEventsSettings, rank: int | None, host: str, topic: str, sources: Mapping[str, Any]
) -> KvSource | None:
    """The source of an endpoint's events: as it is configured, else as its engine reports. None: there is none.

    ``host``: of the engine's URL, an IPv6 address without brackets. ``topic``: of an engine that connects to us.
    ``sources``: an engine's ``GET /kv_event_sources`` (rank -> configuration), or empty.
    """
    if not settings.enabled:
        return None
    if settings.connects:
        return connecting_source(settings, rank, host, topic, sources)
    if settings.endpoint is not None:
        return configured_source(settings, rank, host, sources)
    return reported_source(sources, rank, host, settings.topic)


def configured_source(
    settings: KvEventsSettings, rank: int | None, host: str, sources: Mapping[str, Any]
) -> KvSource | None:
    """The source that the configuration names. None: it names none, or turns events off."""
    if not settings.enabled or settings.endpoint is None:
        return None
    address = _resolve(settings.endpoint, host, rank or 0)
    if address is None:
        return None
    replay = _resolve(settings.replay, host, rank or 0) if settings.replay else None
    return KvSource(address, replay, settings.topic, rank=_number(_named(sources, rank)))


def connecting_source(
    settings: KvEventsSettings, rank: int | None, host: str, topic: str, sources: Mapping[str, Any]
) -> KvSource | None:
    """The source of an engine that connects to us with the whole topic ``topic``. None: the endpoint has no rank and
    the engine several."""
    if rank is None and len(rank_keys(sources)) > 1:
        return None
    named = _named(sources, rank)
    entry = sources[named] if named is not None else None
    replay = entry.get("replay_endpoint") if isinstance(entry, dict) else None
    number = _number(named)
    return KvSource(
        None,
        _resolve(settings.replay, host, rank or 0) if settings.replay else _resolve(replay, host, 0),
        topic,
        # vLLM adds the rank among all nodes' ranks, which is its name.
        min(number, MAX_RANKS) if number is not None else rank or 0,
        number,
    )


def reported_source(sources: Mapping[str, Any], rank: int | None, host: str, topic: str = "") -> KvSource | None:
    """The source in ``sources``. None: off or unusable.

    An endpoint without a rank has one only if the engine has a single rank: events of several belong to several caches.
    """
    named = _named(sources, rank)
    entry = sources[named] if named is not None else None
    if not isinstance(entry, dict) or not entry.get("enable_kv_cache_events", True):
        return None
    if entry.get("publisher", "zmq") != "zmq":
        return None
    address = _resolve(entry.get("endpoint"), host, 0)
    if address is None:
        return None
    # A subscription is to a prefix: a configured topic narrows it, and an engine's own is used only if it is a string.
    topic = topic or _text(entry.get("topic"))
    return KvSource(address, _resolve(entry.get("replay_endpoint"), host, 0), topic, rank=_number(named))


def rank_keys(sources: Mapping[str, Any]) -> list[str]:
    """The keys that are rank numbers, in ascending order."""
    return sorted((key for key in sources if key.isascii() and key.isdigit() and len(key) < 10), key=int)


def _named(sources: Mapping[str, Any], rank: int | None) -> str | None:
    """The key of an endpoint's rank; of the only rank if the endpoint has none; None: there is no such key.

    It is the ``rank``-th key in order: behind a hybrid load balancer a node's rank numbers begin above 0, but those of
    the header that chooses a rank at 0.
    """
    ranks = rank_keys(sources)
    if rank is None:
        return ranks[0] if len(ranks) == 1 else None
    return ranks[rank] if rank < len(ranks) else None


def _number(named: str | None) -> int | None:
    return None if named is None else int(named)


def _text(value: Any) -> str:
    return value if isinstance(value, str) and len(value) <= MAX_ADDRESS else ""


def _resolve(address: Any, host: str, offset: int) -> str | None:
    """``tcp://HOST:PORT`` that can be connected to, or an ``ipc://`` path; None for anything else."""
    if not isinstance(address, str) or len(address) > MAX_ADDRESS:
        return None
    if address.startswith("ipc://"):
        # Ranks cannot share a path, and vLLM refuses an ipc address for ranks above 0.
        return address if offset == 0 and len(address) > len("ipc://") else None
    if not address.startswith("tcp://"):
        return None
    name, colon, port = address.removeprefix("tcp://").rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and len(port) <= 5):
        return None
    number = int(port) + offset
    if not 0 < number <= 65535:
        return None
    if name in WILDCARDS:
        name = f"[{host}]" if ":" in host else host
    return f"tcp://{name}:{number}"
