"""All that is found: the sources of all models and the endpoints that registered themselves, from one configuration to
the next."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gateway.core.tasks import TaskSet
from gateway.discovery.follower import Follower
from gateway.discovery.merge import Offer
from gateway.discovery.registered import Registered
from gateway.discovery.settings import DiscoverSettings
from gateway.discovery.source import Source
from gateway.framework import Clock

log = logging.getLogger("kvgate.discovery")

FIRST = 5.0
"""Seconds for which a start or a reload waits for the first list of a source: a name server's timeout. What comes later
is added later."""

REGISTERED = "registered"
"""What the place of endpoints is called that registered themselves."""


@dataclass(frozen=True, slots=True, eq=False)
class Following:
    """The sources of one configuration, in its order; ``fresh``: those that were not followed before."""

    models: Sequence[str]
    followers: Sequence[Follower]
    fresh: Sequence[Follower] = ()

    async def told(self) -> None:
        """Wait until each that is fresh has told a list, or for ``FIRST``."""
        try:
            async with asyncio.timeout(FIRST):
                for follower in self.fresh:
                    await follower.told.wait()
        except TimeoutError:
            for follower in self.fresh:
                if not follower.told.is_set():
                    log.warning("model %s: %s has told no endpoints yet", follower.model, follower.label)


class Discovery:
    """``following``: what is in force. ``registered``: endpoints that registered themselves.

    ``make``: makes a source. ``changed``: called when a source that is in force has another list.
    """

    def __init__(self, clock: Clock, make: Callable[[DiscoverSettings], Source], changed: Callable[[], None]) -> None:
        self.following = Following((), ())
        self.registered = Registered(clock, changed)
        self._clock = clock
        self._make = make
        self._changed = changed
        self._tasks = TaskSet()
        self._running: dict[Follower, asyncio.Task[None]] = {}

    def prepare(self, models: Iterable[tuple[str, Sequence[DiscoverSettings]]]) -> Following:
        """The sources of another configuration. Those that stay are kept, and the others are followed from now on;
        ``adopt`` or ``discard`` comes next."""
        left = list(self.following.followers)
        followers: list[Follower] = []
        fresh: list[Follower] = []
        models = list(models)
        for model, sources in models:
            for settings in sources:
                same = [one for one in left if one.model == model and one.settings == settings]
                if same:
                    left.remove(same[0])
                    followers.append(same[0])
                    continue
                follower = Follower(model, settings, self._make, self._clock, self._changed)
                followers.append(follower)
                fresh.append(follower)
        for follower in fresh:
            for before in left:
                if (before.model, before.label) == (follower.model, follower.label):
                    follower.inherit(before)
            task = self._tasks.start(follower.run(), name=f"follow {follower.label}")
            self._running[follower] = task
        return Following([model for model, _ in models], followers, fresh)

    def adopt(self, following: Following) -> None:
        """These are in force."""
        before, self.following = self.following, following
        self._stop(follower for follower in before.followers if follower not in following.followers)
        self.registered.keep(following.models)

    def discard(self, following: Following) -> None:
        """What ``prepare`` made is not wanted."""
        self._stop(following.fresh)

    def offers(self, following: Following) -> list[Offer]:
        """What is found of its models, in the order in which it counts."""
        registered = [
            Offer(model, REGISTERED, endpoints)
            for model in following.models
            if (endpoints := self.registered.of(model))
        ]
        return [*registered, *(Offer(one.model, one.label, one.endpoints) for one in following.followers)]

    async def close(self) -> None:
        await self._tasks.close()

    def _stop(self, followers: Iterable[Follower]) -> None:
        for follower in followers:
            self._running.pop(follower).cancel()
