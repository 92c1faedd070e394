"""What each endpoint's work costs to begin with: by its own settings, its model's or the fleet's, or the hardware that
they name."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

from gateway.config.settings import Config, ModelSettings
from gateway.fleet.load.hardware import starting_costs
from gateway.fleet.load.shape import ModelShape, find_shape
from gateway.fleet.settings import EndpointSettings
from gateway.framework.fleet import Model
from gateway.proxy.serving.model_directory import ModelRuntime

log = logging.getLogger("kvgate.cost")


def priced(config: Config, runtimes: Sequence[ModelRuntime]) -> list[tuple[Model, Sequence[EndpointSettings]]]:
    """The endpoints for the fleet. The starting costs of each are its own, its model's or the fleet's."""
    found: list[tuple[Model, Sequence[EndpointSettings]]] = []
    for settings, runtime in zip(config.models, runtimes, strict=True):
        shape = cache(partial(_shape, settings))
        endpoints = []
        for endpoint in settings.endpoints:
            costs = endpoint.costs or starting_costs((endpoint.cost, settings.cost, config.fleet.cost), shape)
            endpoints.append(replace(endpoint, costs=costs))
        found.append((runtime.model, endpoints))
    return found


def _shape(settings: ModelSettings) -> ModelShape | None:
    """Found once for each model, where a GPU is named for any of its endpoints."""
    shape = None if settings.tokenizer is None else find_shape(settings.tokenizer, settings.revision)
    if shape is None:
        log.warning(
            "model %s: cost.gpu: no config.json with the model's sizes beside its tokenizer, in a folder or the hub's "
            "cache: its costs start from the profile 70b-tp4",
            settings.name,
        )
    return shape
