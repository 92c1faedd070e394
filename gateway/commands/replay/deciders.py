"""The gateways of a replay: one, or several that place requests on the same engines, each with a fleet, ledgers, a
scheduler and an index of its own. What one has booked the others hear after a delay, as rows, like workers and
replicas."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from random import Random

from gateway.commands.replay.policies import Policy
from gateway.config.build import build_scheduler
from gateway.core.observer import Observer
from gateway.fleet.engine import FleetEndpoint
from gateway.fleet.fleet import Fleet
from gateway.fleet.load.joint import hear, join, own_row
from gateway.fleet.load.lessons import ANSWER, learn_answer
from gateway.fleet.load.others import NOTHING, Row
from gateway.fleet.load.pace import Pace, booked_between
from gateway.fleet.settings import EndpointSettings, FleetSettings
from gateway.framework import Clock, Context
from gateway.framework.fleet import Model
from gateway.kvcache.index.block_events import Event
from gateway.kvcache.index.cache_index import CacheIndex
from gateway.kvcache.settings import CacheSettings
from gateway.scheduling.herd import HerdGuard


class Strict(Observer):
    """An observer that counts nothing, and raises what a scorer raises. In production a failing scorer is skipped; in a
    replay that would measure another policy."""

    def plugin_failed(self, kind: str, name: str, error: BaseException) -> None:
        raise error


@dataclass(frozen=True, slots=True)
class Shared:
    """What all gateways of a replay have in common. ``fleet``: the settings of scrapes; ``seed``: of the run."""

    clock: Clock
    endpoints: tuple[EndpointSettings, ...]
    fleet: FleetSettings
    block_size: int
    seed: int


class Decider:
    """One gateway. ``number``: from 0. Raises ConfigError if ``policy`` is invalid."""

    def __init__(self, policy: Policy, shared: Shared, number: int) -> None:
        # A random stream of its own: with the workload's or the scrapes', draws would repeat the arrivals'.
        chance = Random(f"placement {shared.seed}" if number == 0 else f"placement {shared.seed} {number}")
        observer, clock = Strict(), shared.clock
        self.scheduler = build_scheduler(
            policy.config, lambda name: Context(name=name, clock=clock, random=chance), observer=observer
        )
        self.model = Model(name="replay", handler=policy.handler)
        self.fleet = Fleet([(self.model, shared.endpoints)], shared.fleet, clock, observer, chance)
        # The first scrape of an engine, before its first request, reports the block size.
        self.index = CacheIndex(CacheSettings(block_size=shared.block_size), self.model.name, clock, observer)
        self.endpoints = self.fleet.endpoints(self.model)
        for endpoint in self.endpoints:
            self.index.add(endpoint, events=True)
            self.index.set_complete(endpoint.slot)

    @property
    def places(self) -> list[FleetEndpoint]:
        """Its endpoints, in the order of the engines."""
        found = []
        for endpoint in self.endpoints:
            assert isinstance(endpoint, FleetEndpoint)
            found.append(endpoint)
        return found

    def forget(self, slot: int) -> None:
        """An engine has a new process, which holds nothing and reports everything that it stores."""
        self.index.clear(slot)
        self.index.set_complete(slot)

    def hear(self, slot: int, events: list[Event]) -> None:
        """A message with an engine's events has arrived."""
        self.index.apply(slot, events)
        self.index.report_counts(slot)


class Exchange:
    """Rows between gateways, which the others know after ``delay`` seconds: so much of what each books is unseen, and
    guarded against. ``changed``: the ledgers that have changed since ``rows`` was called, by decider and
    engine. Nothing is exchanged if there is one gateway."""

    def __init__(self, deciders: list[Decider], delay: float, shared: Shared) -> None:
        self.changed: dict[tuple[int, int], None] = {}
        self._ledgers = [[place.core.ledger for place in decider.places] for decider in deciders]
        self._costs = [[place.core.cost for place in decider.places] for decider in deciders]
        self._models = [decider.model for decider in deciders]
        self._lessons: list[tuple[int, int, str, tuple[float, ...]]] = []
        self._delay, self._clock = delay, shared.clock
        self._paces = [Pace() for _ in deciders]
        self._told: dict[tuple[int, int], Row] = {}
        if len(deciders) > 1:
            for number, decider in enumerate(deciders):
                chance = Random(f"guard {shared.seed} {number}")
                decider.scheduler.guard = HerdGuard(partial(self._unseen, number), chance)
            for number, ledgers in enumerate(self._ledgers):
                for engine, ledger in enumerate(ledgers):
                    join(ledger, partial(self._touched, (number, engine)), _nothing_newer)
            for number, costs in enumerate(self._costs):
                for engine, cost in enumerate(costs):
                    cost.tell = partial(self._learned, number, engine)

    def rows(self) -> list[tuple[int, int, Row]]:
        """What the others have to hear: deciders, engines, and the rows as they are now."""
        changed, self.changed = self.changed, {}
        return [(number, engine, Row(*own_row(self._ledgers[number][engine]))) for number, engine in changed]

    def tell(self, rows: list[tuple[int, int, Row]]) -> None:
        """They have arrived at all others."""
        now = self._clock.monotonic()
        for number, engine, row in rows:
            self._paces[number].add(booked_between(self._told.get((number, engine), NOTHING), row), now)
            self._told[number, engine] = row
            for other, ledgers in enumerate(self._ledgers):
                if other != number:
                    hear(ledgers[engine], number, row)

    def _unseen(self, number: int) -> float:
        """Bookings of all others that this one has not heard of yet, about."""
        now = self._clock.monotonic()
        return self._delay * sum(pace.at(now) for other, pace in enumerate(self._paces) if other != number)

    def grown(self) -> None:
        """Some times a second: answers grow, and prompts end that nothing shows; and what answers have taught."""
        lessons, self._lessons = self._lessons, []
        for number, engine, kind, numbers in lessons:
            for other, costs in enumerate(self._costs):
                if other == number:
                    continue
                if kind == ANSWER:
                    learn_answer(self._models[other], *numbers)
                else:
                    costs[engine].hear(kind, numbers)
        for number, ledgers in enumerate(self._ledgers):
            for engine, ledger in enumerate(ledgers):
                if ledger.own_requests:
                    self._touched((number, engine))

    def _learned(self, number: int, engine: int, kind: str, numbers: tuple[float, ...], model: str = "", /) -> None:
        self._lessons.append((number, engine, kind, numbers))

    def _touched(self, which: tuple[int, int]) -> None:
        self.changed[which] = None


def _nothing_newer() -> None:
    """Of a ledger that applies a scrape: what others have told is there, and nothing else."""
