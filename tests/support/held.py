"""A model's queue in virtual time: the real scheduler, ledgers and index, and a driver that books what it is told."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from gateway.config.build import build_scheduler
from gateway.config.load import loads
from gateway.core.clock import ManualClock
from gateway.core.observer import NULL_OBSERVER
from gateway.core.prompt import Prompt
from gateway.errors import GatewayError, NoEndpoint
from gateway.fleet.engine import FleetEndpoint
from gateway.fleet.fleet import Fleet
from gateway.fleet.settings import EndpointSettings, FleetSettings, StartingCosts
from gateway.flow.entry import Entry
from gateway.flow.guarded_order import GuardedOrder
from gateway.flow.placed import Placed, at_once
from gateway.flow.queue import HeldQueue
from gateway.flow.settings import QueueSettings
from gateway.framework import Context, Endpoint, Kind, Order, Plan, Request, Tenant, Waiting
from gateway.framework.fleet import EngineMetrics, Model
from gateway.framework.request import Slo
from gateway.kvcache.index.cache_index import CacheIndex
from gateway.kvcache.index.keys import BlockKeys
from gateway.kvcache.settings import CacheSettings
from gateway.placement.placing import Placement, book, decide

COSTS = StartingCosts(prefill_token=1e-4, prefill_quadratic=0.0, step=0.01, step_request=1e-4, kv_token=1e-8, fit=False)
"""1,000 new tokens take 0.1 s: three such prompts fill a window of 0.3 s."""


class FirstCome:
    """Whoever arrived first; no tenant pays for anything."""

    def queued(self, waiting: Waiting, /) -> None: ...

    def rank(self, waiting: Waiting, /) -> float:
        return waiting.arrived

    def turn(self, waiting: Waiting, /) -> float:
        return waiting.arrived

    def placed(self, waiting: Waiting, /) -> None: ...

    def left(self, waiting: Waiting, /) -> None: ...

    def settled(self, waiting: Waiting, seconds: float, tokens: float, /) -> None: ...


class Asked(NamedTuple):
    request: Request
    keys: BlockKeys


@dataclass(slots=True)
class Running:
    """``asked``: whole, as a retry would need it. ``entry``: what the queue has of it."""

    asked: Asked
    placement: Placement
    entry: Entry | Placed


class Held:
    """``placed``: those that are, until they are ended; ``granted``: all that ever were, in order. ``refused``: by
    entry, why. ``at_once``: while nobody waits, requests are placed without an entry."""

    def __init__(
        self,
        endpoints: int = 2,
        *,
        order: Order | None = None,
        settings: QueueSettings | None = None,
        roles: Sequence[str] = (),
        profile: str = "",
        capacity: int = 0,
        costs: StartingCosts = COSTS,
        at_once: bool = False,
    ) -> None:
        self.at_once = at_once
        self.clock, self.model = ManualClock(), Model("m", expected_output=100.0)
        chance = Random(1)
        entries = [
            EndpointSettings(f"http://e{number}:1", costs=costs, role=roles[number] if roles else "both")
            for number in range(endpoints)
        ]
        self.fleet = Fleet([(self.model, entries)], FleetSettings(), self.clock, NULL_OBSERVER, chance)
        self.all = list(self.fleet.endpoints(self.model))
        self.index = CacheIndex(CacheSettings(), "m", self.clock, NULL_OBSERVER)
        for endpoint in self.all:
            endpoint.engine.up = True
            self.index.add(endpoint, events=True)
            self.index.set_complete(endpoint.slot)
            self.scrape(endpoint, capacity=capacity)
        text = profile or "models: [{name: m, endpoints: [{url: 'http://e0:1'}]}]"
        self.scheduler = build_scheduler(loads(text, {}), lambda name: Context(name, self.clock, chance))
        self.settings = settings or QueueSettings()
        self.queue = HeldQueue(
            "m", self.settings, GuardedOrder(order or FirstCome(), "test", NULL_OBSERVER), self, self.clock, Random(2)
        )
        self.decisions = 0
        self.placed: dict[Entry, Running] = {}
        self.granted: list[Entry] = []
        self.refused: dict[Entry, Exception] = {}
        self._made = 0

    # the queue's driver

    def endpoints(self) -> Sequence[Endpoint]:
        return self.all

    def decide(self, entry: Entry) -> Plan:
        assert entry.call is not None
        self.decisions += 1
        up = [one for one in self.all if one.engine.up and not one.draining]
        if not up:
            raise NoEndpoint("none is up")
        return decide(entry.call, up, self.index, self.scheduler)

    def place(self, entry: Entry, plan: Plan) -> None:
        assert entry.call is not None
        asked = Asked(entry.request, entry.call.keys)
        self.placed[entry] = Running(asked, book(asked, plan, self.index, self.clock.now), entry)
        self.granted.append(entry)

    def refuse(self, entry: Entry, error: Exception) -> None:
        assert entry not in self.refused
        self.refused[entry] = error

    # what happens

    def entry(
        self,
        tokens: int = 1000,
        *,
        prefix: int = 0,
        tenant: Tenant | None = None,
        band: int = 0,
        slo: Slo | None = None,
        size: int = 100,
        **others: Any,
    ) -> Entry:
        """``prefix``: as many of its first tokens are the same in all of them."""
        self._made += 1
        ids = array("I", [1] * prefix + [1000 + self._made] * (tokens - prefix))
        request = Request(
            *(f"r{self._made}", self.model, Kind.CHAT, self.clock.now),
            stream=True,
            expected_output=self.model.expected_output,
            token_ids=ids,
            prompt_tokens=tokens,
            exact=True,
            slo=slo,
            tenant=tenant or Tenant(),
            band=band,
        )
        asked = Asked(request, self.index.keys(Prompt(ids, tokens, True)))
        return Entry.of(asked, self.settings, self.clock.now, size=size, **others)

    def arrive(self, entry: Entry) -> bool:
        """As the proxy has it arrive, if ``at_once``."""
        plan = None
        try:
            if self.at_once and not (self.queue.waiting or self.queue.counts_all):
                plan = self.decide(entry)
                assert entry.call is not None
                placed = at_once(entry.call, plan, self.queue.room, self.queue.live, self.clock.now)
                if placed is not None:
                    self.place(entry, plan)
                    self.placed[entry].entry = placed
                    return True
            return self.queue.arrive(entry, plan)
        except GatewayError as error:
            self.refused[entry] = error
            return False

    def first_token(self, entry: Entry) -> None:
        work = self.placed[entry].placement.decode
        work.computed()
        self.queue.first_token(work.endpoint, work.predicted, self.clock.now - work.at)

    def end(self, entry: Entry, output: float = 100.0, computed: int | None = None) -> None:
        running = self.placed.pop(entry)
        running.placement.end(ok=True)
        self.queue.settled(running.entry, output=output, computed=computed)

    def scrape(
        self, endpoint: Endpoint, *, capacity: int = 0, usage: float = 0.0, running: int = 0, waiting: int = 0
    ) -> None:
        assert isinstance(endpoint, FleetEndpoint)
        now = self.clock.now
        figures = EngineMetrics(
            at=now, running=running, waiting=waiting, kv_usage=usage, kv_capacity=capacity, block_size=16
        )
        endpoint.core.apply_scrape(figures, asked=now)

    def pass_time(self, seconds: float) -> None:
        """Time passes, in which the queue is pumped whenever it asks for it."""
        until = self.clock.now + seconds
        for _ in range(100_000):
            again = self.queue.pump()
            if again > until:
                break
            self.clock.now = max(self.clock.now, again)
        else:
            raise AssertionError("the queue asks to be called for ever")
        self.clock.now = until

    def fill(self, endpoint: int = 0) -> list[Entry]:
        """Requests until the next one would wait."""
        placed = []
        while self.arrive(entry := self.entry()):
            placed.append(entry)
        self.queue.leave(entry)
        return placed
