"""Endpoints from what Kubernetes says of pods: their names, and what is left out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.discovery.settings import DiscoverSettings
from gateway.discovery.source import endpoint_of
from gateway.fleet.settings import EndpointSettings

REMEMBERED = 4096
"""Pods whose names are remembered, 300 bytes each: more than a model can have engines."""


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


class Places:
    """Endpoints with names that stay: POD:PORT.

    A pod that was made again, under its name and with its address, is another endpoint, whose engine holds nothing of
    the first one's. So it gets another name, with a part of its uid.
    """

    def __init__(self, settings: DiscoverSettings) -> None:
        self._settings = settings
        self._names: OrderedDict[tuple[str, str], tuple[str, str]] = OrderedDict()

    def endpoints(self, places: Iterable[Place]) -> tuple[list[EndpointSettings], list[str]]:
        """Those at ``places``, sorted by name, and what of them is wrong, in words. Of two pods with one address the
        younger one has it: the other has ended, and that was not told yet."""
        youngest: dict[str, Place] = {}
        for place in sorted(places, key=lambda place: (place.made, place.uid)):
            youngest[place.ip] = place
        found, wrong = [], []
        for place in sorted(youngest.values(), key=lambda place: place.pod):
            name = self._name(place)
            for port in place.ports:
                given = {"role": place.role, "labels": place.labels, "name": name and f"{name}:{port}"}
                try:
                    found.append(endpoint_of(self._settings, place.ip, port, **given))
                except ValueError as error:
                    wrong.append(f"pod {place.pod}, port {port}: {error}")
        return found, wrong

    def _name(self, place: Place) -> str | None:
        """None: it is called by its address."""
        if not place.pod:
            return None
        key = place.pod, place.ip
        uid, name = self._names.get(key, (place.uid, place.pod))
        if uid != place.uid:
            name = f"{place.pod}.{place.uid[:8]}"
        self._names[key] = place.uid, name
        self._names.move_to_end(key)
        if len(self._names) > REMEMBERED:
            self._names.popitem(last=False)
        return name
