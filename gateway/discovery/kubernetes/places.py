"""Endpoints from what Kubernetes says of pods: their names, and what is left out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gateway.discovery.settings import DiscoverSettings
from gateway.discovery.source import endpoint_of
from gateway.fleet.settings import EndpointSettings

REMEMBERED = 4096
"""Pods that are remembered, 2 KB each: more than a model can have."""


@dataclass(frozen=True, slots=True)
class Place:
    """A pod that takes requests now. ``role``: None where nothing says it. ``made``: when the pod was created, as text
    that sorts by time; empty where that is not known."""

    pod: str
    uid: str
    ip: str
    ports: Sequence[int]
    role: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    made: str = ""


@dataclass(frozen=True, slots=True)
class _Known:
    """A place as it was last, with what was made of it."""

    place: Place
    name: str | None
    endpoints: Sequence[EndpointSettings]
    wrong: Sequence[str]


class Places:
    """Endpoints with names that stay: POD:PORT.

    A pod that was made again, under its name and with its address, is another endpoint, whose engine holds nothing of
    the first one's. So it gets another name, with a part of its uid.
    """

    def __init__(self, settings: DiscoverSettings) -> None:
        self._settings = settings
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()

    def endpoints(self, places: Iterable[Place]) -> tuple[list[EndpointSettings], list[str]]:
        """Those at ``places``, sorted by name, and what of them is wrong, in words. Of two pods with one address and
        port the younger one has it: the other has ended, and that was not told yet. Pods on their host's network share
        its address, each with ports of its own."""
        by_age = sorted(places, key=lambda place: (place.made, place.uid))
        youngest = {(place.ip, port): place for place in by_age for port in place.ports}
        found: list[EndpointSettings] = []
        wrong: list[str] = []
        for place in sorted(by_age, key=lambda place: place.pod):
            ports = [port for port in place.ports if youngest[place.ip, port] is place]
            if not ports:
                continue
            known = self._at(place if len(ports) == len(place.ports) else replace(place, ports=ports))
            found += known.endpoints
            wrong += known.wrong
        return found, wrong

    def _at(self, place: Place) -> _Known:
        """Made anew only where the place has changed: of 500 pods one changes at a time."""
        key = place.pod, place.ip
        known = self._known.get(key)
        if known is None or known.place != place:
            name: str | None = place.pod or None  # None: it is called by its address
            if known is not None and name is not None:
                name = known.name if known.place.uid == place.uid else f"{place.pod}.{place.uid[:8]}"
            known = self._known[key] = self._make(place, name)
        self._known.move_to_end(key)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return known

    def _make(self, place: Place, name: str | None) -> _Known:
        found, wrong = [], []
        for port in place.ports:
            given = {"role": place.role, "labels": place.labels, "name": name and f"{name}:{port}"}
            try:
                found.append(endpoint_of(self._settings, place.ip, port, **given))
            except ValueError as error:
                wrong.append(f"pod {place.pod}, port {port}: {error}")
        return _Known(place, name, found, wrong)
