"""``kvgate check``: what the sources of endpoints tell, each asked once, and what a model without endpoints means."""

from __future__ import annotations

from gateway.config.settings import ModelSettings
from gateway.discovering import Discovering

SHOWN = 8
"""Endpoints of a source that are named; a pool may have hundreds."""


def of_sources(found: Discovering) -> tuple[list[str], list[str]]:
    """The warnings and the notes. ``found``: its sources were asked."""
    warnings, notes = [], []
    for one in found.sources():
        place = f"model {one.model}: {one.source}"
        if one.problem is not None:
            warnings.append(f"{place} cannot be read: {one.problem}")
        warnings += [f"{place}: left out: {line}" for line in one.wrong]
        more = f" and {len(one.endpoints) - SHOWN} more" if len(one.endpoints) > SHOWN else ""
        urls = f": {', '.join(one.endpoints[:SHOWN])}{more}" if one.endpoints else ""
        notes.append(f"{place}: {len(one.endpoints)} endpoints{urls}")
    warnings += found.notes
    notes += [f"model {model.name}: {_without(model)}" for model in found.config.models if not model.endpoints]
    return warnings, notes


def _without(model: ModelSettings) -> str:
    who = "none is found now" if model.discover else "its engines register themselves (POST /endpoints)"
    held = "wait for the first one" if model.limits.no_endpoint_timeout else "get 503 until there is one"
    return f"it has no endpoints: {who}; requests {held}"
