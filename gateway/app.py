"""The composition root: builds every room from a configuration and connects them. The only file that knows them all."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from gateway import __version__
from gateway.config.settings import Config
from gateway.core.clock import SystemClock
from gateway.core.observer import Observer
from gateway.core.queue_view import QueueView
from gateway.discovering import Discovering
from gateway.doors import Doors
from gateway.feed import CacheFeed
from gateway.fleet.fleet import Fleet
from gateway.framework import Clock
from gateway.framework.fleet import Model
from gateway.kept import Kept
from gateway.kvcache.events.poller import Poller
from gateway.kvcache.index.cache_index import CacheIndex
from gateway.learned import LearnedFile
from gateway.objectives import FoundObjectives
from gateway.observability.metrics import Metrics
from gateway.observability.observers import Observers
from gateway.pricing import priced
from gateway.proxy.admin.debug import Debug
from gateway.proxy.admin.discovery import DiscoveryRoutes
from gateway.proxy.admin.explain import Explainer
from gateway.proxy.admin.keys import KeyRoutes
from gateway.proxy.admin.listener import Admin
from gateway.proxy.admin.operations import Operations
from gateway.proxy.admin.replicas import ReplicaRoutes
from gateway.proxy.memory import Memory
from gateway.proxy.serving.decisions import Decisions
from gateway.proxy.serving.host_queue import HostQueue
from gateway.proxy.serving.model_directory import ModelDirectory
from gateway.proxy.serving.response_affinity import ResponseAffinity
from gateway.proxy.serving.stream_usage import StreamUsage
from gateway.proxy.upstream.send import Upstream
from gateway.queueing import SharedCharges
from gateway.reload import Read, Reloading
from gateway.remembered import RememberedFile
from gateway.replicating import replicas_of
from gateway.scaling import Scaling
from gateway.scheduling.herd import HerdGuard
from gateway.scheduling.scheduler import Scheduler
from gateway.sharing.notes import Notes
from gateway.sharing.seat import Seat
from gateway.sharing.shared_lessons import SharedLessons
from gateway.sharing.shared_loads import SharedLoads
from gateway.sharing.siblings import Siblings
from gateway.tenancy import divider_of, limits_of, store_of
from gateway.tenants.gate import Gate
from gateway.tenants.management import Management
from gateway.tenants.sources import Sources
from gateway.tenants.state_file import StateFile
from gateway.tenants.usage import usage
from gateway.wiring import PLUGIN, Common, Draft, Rooms, Wiring, blaming, listener_of

log = logging.getLogger("kvgate.app")


RESPONSES = "responses"
"""The name of notes on stored responses among workers. A plugin's has ``wiring.PLUGIN`` before it."""


class Gateway:
    """Every room of one process, connected; its listeners are the caller's.

    ``observers``: observers beside the metrics. ``seed``: of all random choices. ``read``: reads the configuration
    again for a reload; None: it cannot be reloaded. ``adopted``: called with each configuration that comes into force
    by a reload. ``seat``: of a worker; None: this is the only process of its service. Raises ConfigError.
    """

    def __init__(
        self,
        config: Config,
        *,
        observers: Sequence[Observer] = (),
        clock: Clock | None = None,
        seed: int | None = None,
        read: Read | None = None,
        adopted: Callable[[Config], None] = lambda config: None,
        seat: Seat | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self.metrics = Metrics(self.clock, __version__)
        self.decisions = Decisions(self.clock)
        observer = Observers(self.metrics, self.decisions, *observers)
        chance = random.Random(seed)
        guard = None if config.sharing.url is None else HerdGuard(self._unseen, chance)
        self.siblings = None if seat is None else Siblings(seat, self.clock, observer)
        self._notes = None if self.siblings is None else Notes(self.siblings, self._hear_note, self._remembered)
        tell = None if self._notes is None else self._notes.tell
        common = Common(self.clock, observer, chance, guard, tell)
        draft = self._first = Draft.make(config, common, None)
        with blaming(config, "models"):
            self.fleet = Fleet(
                models=priced(config, draft.runtimes),
                settings=config.fleet,
                clock=self.clock,
                observer=observer,
                random=common.chance,
                siblings=self.siblings,
            )
        self.loads = SharedLoads.of(seat, config.sharing, self.clock)
        if self.loads is not None:
            self.fleet.listen(self.loads)
        if self.siblings is not None:
            self.fleet.listen(SharedLessons(self.siblings, chance))
        self.replicas = replicas_of(config, self.loads, seat, self.siblings, common)
        indexes = {runtime.model.name: runtime.index for runtime in draft.runtimes}
        self._poller = Poller()
        self.feed = CacheFeed(indexes, self.clock, observer, self._poller, listener_of(config, observer))
        self.feed.connect(self.fleet)
        self.memory = Memory(config.listen.max_held)
        stored = ResponseAffinity(
            self.clock,
            None if self.replicas is None else self.replicas.homes,
            (lambda note: None) if tell is None else partial(tell, RESPONSES),
        )
        sources = Sources(self.clock, config.tenants, draft.client_keys, draft.source)
        limits = limits_of(seat, config.sharing, self.clock)
        gate = Gate(lambda: sources.directory.roster.prices, self.clock, observer, limits)
        self.divider = divider_of(limits, config.sharing, self.clock, chance)
        rooms = self.rooms = Rooms(
            common,
            self.fleet,
            Upstream(config.timeouts, memory=self.memory),
            self._poller,
            stored,
            self.decisions,
            StreamUsage(self.clock),
            self.memory,
            sources,
            gate,
            self.clock.wall(),
            loads=None if self.loads is None else self.loads.table,
            host=None if self.siblings is None else HostQueue(self.siblings, self.clock),
        )
        people = sources.directory
        self.metrics.read_tenants_from(
            keys=lambda: len(people.roster.entries), header_tenants=lambda: len(people.named), source=sources.state
        )
        self.metrics.read_from(
            held=lambda: self.memory.held,
            in_flight=self.fleet.in_flight,
            budgets=gate.budget_ratios,
            standing_by=lambda: {one.model.name: one.standby.waiting for one in self.directory.runtimes},
        )
        self.fleet.when_changed(self._endpoints_changed)
        if self.divider is not None:
            self.metrics.read_limits_from(self.divider.modes)
        if (replicas := self.replicas) is not None:
            self.metrics.read_replicas_from(peers=replicas.states, connected=lambda: replicas.connected)
        wiring = Wiring.make(draft, rooms, None)
        used = None if config.tenants_state is None else StateFile(config.tenants_state, gate)
        learned = None
        if config.state is not None:
            writes = seat is None or seat.number == 0  # its successor, if it dies, goes on from what it wrote
            remembered = RememberedFile(
                f"{config.state}.remembered",
                self.clock,
                indexes=self._indexes,
                notes=self._remembered,
                hear=self._hear_note,
            )
            learned = LearnedFile(
                config.state, self.fleet, self._models, self.clock, remembered=remembered, writes=writes
            )
        self.kept = Kept(config, used, learned)
        self.metrics.read_queues_from(self._queue_views)
        scaling = Scaling(lambda: self.reloading.wiring, self.fleet, self.siblings, self.clock)
        self.metrics.read_scaling_from(scaling.views)
        self.doors = Doors(wiring, people, gate)
        found = Discovering(config, self.fleet, FoundObjectives(sources, self.clock), self.clock)
        self.metrics.read_sources_from(found.sources)
        self.reloading = Reloading(
            *(wiring, found), rooms=rooms, feed=self.feed, doors=self.doors, read=read, adopted=adopted
        )
        if replicas is not None:
            replicas.charges = SharedCharges(lambda: self.reloading.wiring.queues)
        registering = DiscoveryRoutes(found, self.reloading.refresh)
        self.operations = Operations(self.fleet, self.reloading.reload, registering)
        debug = Debug(
            self.decisions,
            lambda: self.explainer,
            self.memory,
            max_body=lambda: self.config.listen.max_body,
            patience=lambda: self.config.timeouts.receive,
        )
        keys = KeyRoutes(
            token=lambda: self.config.tenants.admin_token,
            management=lambda: Management(store_of(self.config), self.config.tenants, self.clock),
            memory=self.memory,
            patience=lambda: self.config.timeouts.receive,
            written=rooms.sources.look,
            used=self._used,
        )
        shared = ReplicaRoutes(self.replicas, self.divider)
        served = (self.operations, debug, keys, shared)
        self.admin = Admin(self._render_metrics, [route for each in served for route in each.routes()])

    def _unseen(self) -> float:
        """Bookings of other replicas that this process cannot know of yet."""
        return 0.0 if self.replicas is None else self.replicas.unseen

    def _indexes(self) -> dict[str, CacheIndex]:
        return {runtime.model.name: runtime.index for runtime in self.directory.runtimes}

    def _models(self) -> list[Model]:
        return [runtime.model for runtime in self.directory.runtimes]

    def _hear_note(self, name: str, note: bytes) -> None:
        """Another worker of this host has learned this."""
        if name == RESPONSES:
            self.rooms.responses.on_heard(note)
        else:
            self.scheduler.heard(name.removeprefix(PLUGIN), note)

    def _remembered(self) -> Iterator[tuple[str, bytes]]:
        """What a worker that has just started must hear."""
        yield from ((RESPONSES, note) for note in self.rooms.responses.remembered())
        yield from ((PLUGIN + name, note) for name, note in self.scheduler.remembered())

    def _queue_views(self) -> list[QueueView]:
        return [queue.view() for queue in self.reloading.wiring.queues.values()]

    def _endpoints_changed(self) -> None:
        for runtime in self.directory.runtimes:
            runtime.standby.look()

    def _used(self, tenant: str) -> dict[str, Any] | None:
        """What a tenant in force has used, and what is left of its limits and budget."""
        caller = self.rooms.sources.directory.roster.callers.get(tenant)
        return None if caller is None else usage(self.rooms.gate, caller)

    # The parts in force, which a reload replaces

    @property
    def config(self) -> Config:
        return self.reloading.wiring.config

    @property
    def scheduler(self) -> Scheduler:
        return self.reloading.wiring.scheduler

    @property
    def directory(self) -> ModelDirectory:
        return self.reloading.wiring.directory

    @property
    def explainer(self) -> Explainer:
        return Explainer(
            directory=self.directory,
            scheduler=self.scheduler,
            fleet=self.fleet,
            passing=self.config.pass_through,
            stored=self.rooms.responses,
            poller=self._poller,
            following=self.feed.following,
            queues=self.reloading.wiring.queues,
            tenants=self.rooms.sources.directory,
            in_use=self.reloading.wiring.director.in_use,
            clock=self.clock,
        )

    async def _render_metrics(self) -> tuple[bytes, str]:
        """What has come of the engines' events is counted."""
        await self._poller.catch_up(placing=False)
        return await self.metrics.render()

    async def load(self) -> None:
        """Load the tokenizers. Raises ConfigError."""
        await self._first.load()

    async def start(self, *, beside: bool = False) -> None:
        """Load the tokenizers, probe the engines, follow their events. ``beside``: another process serves, or may do so
        still: its files are its own (see ``kept``), and so are the engines that connect to us, until it lets them go.
        Raises ConfigError."""
        self.reloading.discovering.open()
        await self.load()
        for runtime in self.directory.runtimes:
            runtime.tokens.log_status()
        await self.reloading.discovering.start(self.reloading.refresh)
        self.kept.read()
        if not beside:
            self.kept.start()
        if self.divider is not None:
            self.divider.start()
        with blaming(self.config, "kv_events", "listen"):
            self.feed.listen(beside=beside)
        if self.loads is not None:
            self.loads.start()
        if self.siblings is not None:  # not sooner: the lead has to ask the engines, and tokenizers take seconds
            await self.siblings.start()
        await self.fleet.start()
        self.kept.recall_remembered()
        if self.replicas is not None:  # now that their engines are known
            self.replicas.start()
        self.rooms.sources.start()
        if self.rooms.host is not None:
            self.rooms.host.open()
        self.reloading.open = True

    async def close(self) -> None:
        """Safe after a failed ``start``."""
        await self.operations.close()
        await self.doors.close()
        await self.reloading.discovering.close()
        if self.replicas is not None:
            await self.replicas.close()  # before the siblings: one of them speaks for this host from now on
        if self._notes is not None:
            await self._notes.close()
        if self.siblings is not None:
            await self.siblings.close()  # before the fleet: the next lead asks the engines from now on
            if self.rooms.host is not None:
                self.rooms.host.close()
        await self.rooms.sources.close()
        if self.divider is not None:
            await self.divider.close()
        await self.kept.close()
        await self.fleet.close()  # before the feed, which it notifies of event streams
        await self.feed.close()
        await self.rooms.close()
        if self.loads is not None:
            await self.loads.close()
        await self.reloading.close()
        self.rooms.gate.state.close()
