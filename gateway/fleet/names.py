"""Endpoints' names: no two endpoints have the same, not even when an engine turns out to have ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.errors import ConfigError
from gateway.fleet.engine import FleetEngine, ModelBinding
from gateway.fleet.settings import EndpointSettings
from gateway.framework import Engine
from gateway.framework.fleet import Model


def bind(model: Model, settings: EndpointSettings, engine: FleetEngine, engines: Iterable[FleetEngine]) -> ModelBinding:
    """A binding under a free name: the configured one, else the engine's; with ``@MODEL`` if another model on the
    engine has that.

    Raises ConfigError if an endpoint of another engine has the name.
    """
    taken, base = _taken(engines), settings.name or engine.name
    for name in (base, f"{base}@{model.name}"):
        binding = ModelBinding(model, engine, settings, name)
        other = taken.get(name) or _other(taken, binding, [core.rank for core in engine.cores])
        if other is None:
            return binding
        if other.engine is not engine:
            break
    assert other is not None
    raise same_name(other.engine, engine, base)


def check_names(bindings: Iterable[ModelBinding], ranks: Sequence[int | None], engines: Iterable[FleetEngine]) -> None:
    """Raises ConfigError if another binding has a name that one of ``bindings`` would get with ``ranks``."""
    taken = _taken(engines)
    for binding in bindings:
        if other := _other(taken, binding, ranks):
            raise same_name(other.engine, binding.engine, other.name)


def same_name(one: Engine, other: Engine, name: str) -> ConfigError:
    return ConfigError(f"endpoints {one.url} and {other.url} both have the name {name}: give each its own")


def _taken(engines: Iterable[FleetEngine]) -> dict[str, ModelBinding]:
    return {
        name: binding
        for engine in engines
        for binding in engine.bindings
        if not binding.going
        for name in (binding.name, *(binding.endpoint_name(core.rank) for core in engine.cores))
    }


def _other(taken: dict[str, ModelBinding], binding: ModelBinding, ranks: Sequence[int | None]) -> ModelBinding | None:
    owners = (taken.get(binding.endpoint_name(rank)) for rank in ranks)
    return next((owner for owner in owners if owner is not None and owner is not binding), None)
