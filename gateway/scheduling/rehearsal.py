"""A scheduler to be asked without consequences: what its plugins change meanwhile they change in copies."""

from __future__ import annotations

from collections import deque
from copy import copy
from random import Random
from typing import TypeVar, cast

from gateway.core.observer import NULL_OBSERVER
from gateway.scheduling.profile import Profile
from gateway.scheduling.scheduler import Scheduler

P = TypeVar("P")

MUTABLE = (dict, list, set, deque, Random)
"""What a plugin remembers in. Copied one level deep: a plugin that keeps its memory elsewhere, or so much that copying
it would hold up requests, has a ``__copy__``. A rehearsal never tells it where a request was placed."""


def rehearsal(scheduler: Scheduler) -> Scheduler:
    """Decides as ``scheduler`` would now, draws included, and counts nothing. For one decision: it does not follow what
    the other learns later."""
    copies: dict[int, object] = {}
    profiles = {
        name: Profile(
            profile.name,
            [(each, _understudy(plugin, copies)) for each, plugin in profile.filters],
            [(each, _understudy(plugin, copies), weight) for each, plugin, weight in profile.scorers],
            (profile.picker[0], _understudy(profile.picker[1], copies)),
        )
        for name, profile in scheduler.profiles.items()
    }
    handlers = {name: _understudy(handler, copies) for name, handler in scheduler.handlers.items()}
    return Scheduler(profiles, handlers, NULL_OBSERVER)


def _understudy(plugin: P, copies: dict[int, object]) -> P:
    """A copy, the same one for whoever shares the plugin. ``copies``: by the original's id."""
    if id(plugin) not in copies:
        made = copies[id(plugin)] = copy(plugin)
        for name, value in getattr(made, "__dict__", {}).items():
            if isinstance(value, MUTABLE):
                # One source of chance is behind all plugins: it goes on from one's draw to the next one's here, too.
                setattr(made, name, copies.setdefault(id(value), copy(value)))
    return cast(P, copies[id(plugin)])
