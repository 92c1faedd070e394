"""What lies between the fleet that is and one that another configuration wants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from gateway.errors import ConfigError
from gateway.fleet.address import Address, Location
from gateway.fleet.settings import EndpointSettings
from gateway.fleet.site import Entry, Site
from gateway.framework import Model


@dataclass(slots=True, eq=False)
class Change:
    """``kept``: entries that go on, with what they are told to be. ``gone``: those that nothing wants any more.
    ``lacking``: what there is not yet; ``added``: the entries made of it, so far. ``addresses``: of all that is wanted;
    while they are held, their TLS files need not be read again."""

    kept: list[tuple[Entry, Model, EndpointSettings]] = field(default_factory=list)
    gone: list[Entry] = field(default_factory=list)
    lacking: list[tuple[Model, EndpointSettings]] = field(default_factory=list)
    added: list[Entry] = field(default_factory=list)
    addresses: Sequence[Address] = ()

    @classmethod
    def between(cls, sites: Iterable[Site], wanted: Sequence[tuple[Model, Sequence[EndpointSettings]]]) -> Self:
        """An endpoint goes on where its model, URL, name and configured ranks are the same.

        Raises ConfigError where a model names a URL twice.
        """
        change = cls()
        there = {(entry.model.name, site.location): entry for site in sites for entry in site.entries}
        kept: set[Entry] = set()
        for model, endpoints in wanted:
            named: set[Location] = set()
            for settings in endpoints:
                location = Location.of(settings.url)
                if location in named:
                    raise ConfigError(f"model {model.name}: endpoint {location.url} is listed twice")
                named.add(location)
                entry = there.get((model.name, location))
                if entry is None or not _goes_on(entry.settings, settings):
                    change.lacking.append((model, settings))
                else:
                    change.kept.append((entry, model, settings))
                    kept.add(entry)
        change.gone = [entry for entry in there.values() if entry not in kept]
        return change


@dataclass(frozen=True, slots=True)
class Drain:
    """How far an endpoint is out of use. ``gone``: its engine is not in the configuration any more. ``coming``: the
    change that brings it is not applied yet. ``running``: requests that would notice if the engine ended now."""

    gone: bool
    coming: bool
    by_file: bool
    by_operator: bool
    running: int


def _goes_on(before: EndpointSettings, after: EndpointSettings) -> bool:
    return (before.name, before.ranks) == (after.name, after.ranks)
