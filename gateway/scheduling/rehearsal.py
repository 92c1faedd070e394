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
"""Types that hold a plugin's memory. They are copied one level deep. A plugin with its memory in other types, or with
too much to copy while requests wait, has a ``__copy__``. A rehearsal never calls ``on_placed`` or ``on_settled``."""


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
    return Scheduler(profiles, handlers, NULL_OBSERVER, scheduler.guard)


def _understudy(plugin: P, copies: dict[int, object]) -> P:
    """A copy; all profiles that share the plugin share the copy. ``copies``: by the original's id."""
    if id(plugin) not in copies:
        made = copies[id(plugin)] = copy(plugin)
        for name, value in getattr(made, "__dict__", {}).items():
            if isinstance(value, MUTABLE):
                # One source of chance is behind all plugins: it goes on from one's draw to the next one's here, too.
                setattr(made, name, copies.setdefault(id(value), copy(value)))
    return cast(P, copies[id(plugin)])
