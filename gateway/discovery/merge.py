"""The endpoints of all models: those of plugins.yaml and those that were found, as one list a model that fits together.

Rules, in this order: what stands in plugins.yaml counts as it is. Of what was found of a model, the first that names a
URL counts, as a whole: first those that registered themselves, then the sources in the order of ``discover``. Models
that share an engine must agree on its ranks and its TLS. A name belongs to the first engine that has it; another one
with the same name is called by its address. What breaks a rule is left out and named: it never stops the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gateway.fleet.address import Location
from gateway.fleet.settings import EndpointSettings, TlsSettings


@dataclass(frozen=True, slots=True)
class Offer:
    """What one place names for ``model``. ``place``: in words, for what is left out."""

    model: str
    place: str
    endpoints: Sequence[EndpointSettings]


@dataclass(frozen=True, slots=True)
class Merged:
    """``endpoints``: by model. ``notes``: what was left out or renamed, and why, a line each."""

    endpoints: Mapping[str, tuple[EndpointSettings, ...]]
    notes: Sequence[str] = ()


@dataclass(slots=True)
class _Engine:
    """What all models must agree on for a URL."""

    ranks: int | None
    tls: TlsSettings | None


@dataclass(slots=True)
class _Merging:
    """``names``: whose engine has each. ``topics``: likewise, of engines that connect to us."""

    listens: bool
    names: dict[str, Location] = field(default_factory=dict)
    topics: dict[str, Location] = field(default_factory=dict)
    engines: dict[Location, _Engine] = field(default_factory=dict)

    def enter(self, model: str, endpoint: EndpointSettings, location: Location) -> None:
        for name in _names(endpoint, location):
            self.names.setdefault(name, location)
        if endpoint.kv_events.connects:
            self.topics.setdefault(endpoint.kv_topic(model), location)
        engine = self.engines.setdefault(location, _Engine(endpoint.ranks, endpoint.tls))
        engine.tls = engine.tls or endpoint.tls

    def fitting(self, model: str, endpoint: EndpointSettings, location: Location) -> EndpointSettings:
        """The endpoint as it may be entered. Raises ValueError with the reason why it cannot."""
        engine = self.engines.get(location)
        if engine is not None and engine.ranks != endpoint.ranks:
            raise ValueError(f"its ranks are {endpoint.ranks}, and with another model {engine.ranks}")
        if engine is not None and endpoint.tls not in (None, engine.tls) and engine.tls is not None:
            raise ValueError("it has another tls than with another model")
        if endpoint.kv_events.connects:
            if not self.listens:
                raise ValueError("its kv_events.connects needs kv_events.listen at the top level of plugins.yaml")
            topic = endpoint.kv_topic(model)
            if self.topics.get(topic, location) != location:
                raise ValueError(f"another engine has its topic {topic!r}")
        taken = self._taken(endpoint, location)
        if taken is not None and endpoint.name is not None:
            endpoint = replace(endpoint, name=None)
            taken = self._taken(endpoint, location)
        if taken is not None:
            raise ValueError(f"another engine has its name {taken!r}")
        return endpoint

    def _taken(self, endpoint: EndpointSettings, location: Location) -> str | None:
        """Which of its names another engine has; None: none."""
        return next((name for name in _names(endpoint, location) if self.names.get(name, location) != location), None)


def merge(
    models: Sequence[tuple[str, Sequence[EndpointSettings]]],
    offers: Sequence[Offer],
    *,
    listens: bool,
    ranked: Mapping[str, Location] | None = None,
) -> Merged:
    """``models``: each with its endpoints of plugins.yaml, which fit together. ``offers``: what was found, of these
    models; the first counts first. ``listens``: whether engines may connect to us with their KV events. ``ranked``:
    names that ranks of running engines have, which only the engines tell; they count first where their engine stays."""
    merging = _Merging(listens)
    if ranked:
        listed = [endpoints for _, endpoints in models] + [offer.endpoints for offer in offers]
        staying = {Location.of(endpoint.url) for endpoints in listed for endpoint in endpoints}
        merging.names = {name: location for name, location in ranked.items() if location in staying}
    found: dict[str, dict[Location, EndpointSettings]] = {}
    for model, endpoints in models:
        here = found[model] = {Location.of(endpoint.url): endpoint for endpoint in endpoints}
        for location, endpoint in here.items():
            merging.enter(model, endpoint, location)
    notes = []
    for offer in offers:
        here = found[offer.model]
        for endpoint in offer.endpoints:
            location = Location.of(endpoint.url)
            if location in here:
                continue
            try:
                fitting = merging.fitting(offer.model, endpoint, location)
            except ValueError as error:
                notes.append(f"model {offer.model}: {offer.place}: {location.url} is left out: {error}")
                continue
            if fitting.name != endpoint.name:
                called = f"{location.url} is called {location.authority}: another engine has its name {endpoint.name!r}"
                notes.append(f"model {offer.model}: {offer.place}: {called}")
            here[location] = fitting
            merging.enter(offer.model, fitting, location)
    return Merged({model: tuple(here.values()) for model, here in found.items()}, notes)


def _names(endpoint: EndpointSettings, location: Location) -> Iterator[str]:
    """The names that it may come to have, as far as they are known before the engine is asked."""
    name = endpoint.name or location.authority
    yield name
    if endpoint.ranks is not None and endpoint.ranks > 1:
        yield from (f"{name}/{rank}" for rank in range(endpoint.ranks))
