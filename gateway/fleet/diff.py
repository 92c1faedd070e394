"""The difference between the fleet that is and the one that another configuration wants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from gateway.errors import ConfigError
from gateway.fleet.address import Address, Location
from gateway.fleet.engine import FleetEngine, ModelBinding
from gateway.fleet.settings import EndpointSettings
from gateway.framework.fleet import Model


@dataclass(slots=True, eq=False)
class FleetDiff:
    """``kept``: bindings that stay, each with its new model and settings. ``removed``: bindings that nothing wants.
    ``missing``: what is wanted and not there. ``added``: the bindings made for that so far. ``addresses``: of all that
    is wanted; while they are held, their TLS files need not be read again.
    """

    kept: list[tuple[ModelBinding, Model, EndpointSettings]] = field(default_factory=list)
    removed: list[ModelBinding] = field(default_factory=list)
    missing: list[tuple[Model, EndpointSettings]] = field(default_factory=list)
    added: list[ModelBinding] = field(default_factory=list)
    addresses: Sequence[Address] = ()

    @classmethod
    def between(
        cls, engines: Iterable[FleetEngine], wanted: Sequence[tuple[Model, Sequence[EndpointSettings]]]
    ) -> Self:
        """A binding stays where its model, URL, name and configured ranks are the same.

        Raises ConfigError if a model names a URL twice.
        """
        diff = cls()
        present = {(binding.model.name, engine.location): binding for engine in engines for binding in engine.bindings}
        kept: set[ModelBinding] = set()
        for model, endpoints in wanted:
            named: set[Location] = set()
            for settings in endpoints:
                location = Location.of(settings.url)
                if location in named:
                    raise ConfigError(f"model {model.name}: endpoint {location.url} is listed twice")
                named.add(location)
                binding = present.get((model.name, location))
                before = None if binding is None else (binding.settings.name, binding.settings.ranks)
                if binding is None or before != (settings.name, settings.ranks):
                    diff.missing.append((model, settings))
                else:
                    diff.kept.append((binding, model, settings))
                    kept.add(binding)
        diff.removed = [binding for binding in present.values() if binding not in kept]
        return diff
