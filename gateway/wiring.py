"""The objects that one configuration makes: all parts that a request passes through, built once and never changed.

A reload builds another wiring, and the server switches to it between two requests. A request keeps the wiring with
which it began: plugins, timeouts, pass rules. What outlives a configuration is in ``Rooms``, or is handed on from one
wiring to the next: a model's index, tokenizer and admission, and what plugins remember.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING

from gateway.api.known_chats import KnownChats
from gateway.config.build import build_scheduler
from gateway.config.registry import Registry
from gateway.config.settings import ON_DEMAND, Config, ModelSettings
from gateway.core.observer import Observer
from gateway.errors import ConfigError
from gateway.fleet.fleet import Fleet
from gateway.fleet.load.demand import DemandMeter
from gateway.flow.admission import Admission
from gateway.flow.standby import Standby
from gateway.framework import Clock, Context, Kind
from gateway.framework.fleet import Model
from gateway.kvcache.events.listener import EventListener
from gateway.kvcache.events.poller import Poller
from gateway.kvcache.index.cache_index import CacheIndex
from gateway.proxy.extras.id_forwarding import IdForwarding
from gateway.proxy.extras.prompt_questions import PromptQuestions, PromptQuestionsState
from gateway.proxy.extras.reannounce import Reannounce
from gateway.proxy.extras.token_audit import TokenAudit, TokenAuditState
from gateway.proxy.extras.token_routes import RENDERED
from gateway.proxy.http.keys import read as read_keys
from gateway.proxy.memory import Memory
from gateway.proxy.serving.decisions import Decisions
from gateway.proxy.serving.director import Director
from gateway.proxy.serving.forward import Forwarder
from gateway.proxy.serving.handover import Handover, HandoverState
from gateway.proxy.serving.hooks import AfterCommit, BeforeSend, Hooks, PromptSource
from gateway.proxy.serving.host_queue import HostQueue
from gateway.proxy.serving.model_directory import ModelDirectory, ModelRuntime
from gateway.proxy.serving.placer import Placer
from gateway.proxy.serving.queueing import ModelQueue
from gateway.proxy.serving.reception import Reception
from gateway.proxy.serving.response_affinity import ResponseAffinity
from gateway.proxy.serving.stream_usage import StreamUsage
from gateway.proxy.upstream.legs import RetryBudget
from gateway.proxy.upstream.send import Upstream
from gateway.queueing import connect, queues_of
from gateway.scheduling.herd import HerdGuard
from gateway.scheduling.scheduler import Scheduler
from gateway.sharing.load_table import LoadTable
from gateway.tenancy import source_of
from gateway.tenants.directory import digest
from gateway.tenants.gate import Gate
from gateway.tenants.settings import TenantsSettings
from gateway.tenants.sources import Source, Sources
from gateway.tokens.parity import Parity
from gateway.tokens.settings import TokenSettings
from gateway.tokens.tokenizer import ModelTokens

if TYPE_CHECKING:
    from gateway.epp.picker import Picker

PLUGIN = "plugin "
"""Before a plugin's name, where workers tell each other notes."""


@dataclass(frozen=True, slots=True)
class Common:
    """Objects that every room gets. ``chance``: makes all random choices. ``guard``: None where nobody else places
    requests. ``tell``: sends a plugin's note, under its name, to the host's other workers; None: there are none."""

    clock: Clock
    observer: Observer
    chance: random.Random
    guard: HerdGuard | None = None
    tell: Callable[[str, bytes], None] | None = None

    def context(self, name: str) -> Context:
        """For the constructor of a plugin of this name."""
        if self.tell is None:
            return Context(name, self.clock, self.chance)
        return Context(name, self.clock, self.chance, partial(self.tell, PLUGIN + name))


@dataclass(frozen=True, slots=True)
class Rooms:
    """Objects that all wirings share. ``created``: the ``created`` of every model's entry, seconds since the epoch.
    ``loads``: what others have booked; None: this process decides alone. ``host``: makes one queue of those of a host's
    workers; None: there are no others."""

    common: Common
    fleet: Fleet
    upstream: Upstream
    poller: Poller
    responses: ResponseAffinity
    decisions: Decisions
    usage: StreamUsage
    memory: Memory
    sources: Sources
    gate: Gate
    created: float
    chats: KnownChats = field(default_factory=KnownChats)
    handover: HandoverState = field(default_factory=HandoverState)
    questions: PromptQuestionsState = field(default_factory=PromptQuestionsState)
    token_audit: TokenAuditState = field(default_factory=TokenAuditState)
    loads: LoadTable | None = None
    host: HostQueue | None = None

    async def close(self) -> None:
        """End what is under way to engines, and the connections; after the fleet."""
        await self.handover.close()
        await self.questions.close()
        await self.token_audit.close()
        self.upstream.close()


@dataclass(frozen=True, slots=True)
class Draft:
    """The parts of a configuration except the fleet, not in use yet. ``client_keys``: their digests. ``source``: where
    tenants and keys are kept. ``fresh``: those made for it; the others are taken over from the wiring in force.
    ``queues``: by model, of those that have one."""

    config: Config
    scheduler: Scheduler
    client_keys: frozenset[bytes]
    source: Source | None
    runtimes: Sequence[ModelRuntime]
    fresh: Sequence[ModelTokens]
    queues: Mapping[str, ModelQueue]

    @classmethod
    def make(cls, config: Config, common: Common, before: Wiring | None, registry: Registry | None = None) -> Draft:
        """Raises ConfigError. ``registry``: what is installed, where it is known."""
        context = common.context
        scheduler = build_scheduler(
            config,
            context,
            registry,
            None if before is None else (before.config, before.scheduler),
            observer=common.observer,
            guard=common.guard,
        )
        with blaming(config, "client_keys", "file"):
            client_keys = frozenset(map(digest, read_keys(config.client_keys)))
        source = source_of(config) if before is None else source_of(config, before.config, before.source)
        runtimes = [_runtime(settings, config, common, before) for settings in config.models]
        known = set() if before is None else before.tokens
        fresh = [runtime.tokens for runtime in runtimes if runtime.tokens not in known]
        in_force = None if before is None else (before.config, before.queues)
        make = partial(ModelQueue, clock=common.clock, chance=common.chance, observer=common.observer)
        queues = queues_of(config, context, registry, in_force, make)
        return cls(config, scheduler, client_keys, source, runtimes, fresh, queues)

    async def load(self) -> None:
        """Load the tokenizers that are new. Raises ConfigError."""
        loading = [
            self._load(number, runtime.tokens)
            for number, runtime in enumerate(self.runtimes)
            if runtime.tokens in self.fresh
        ]
        await asyncio.gather(*loading)

    async def discard(self) -> None:
        for tokens in self.fresh:
            await tokens.close()

    async def _load(self, number: int, tokens: ModelTokens) -> None:
        try:
            await tokens.load()
        except ConfigError as error:
            model = ("models", number)
            raise self.config.origin.error(model, error.message, at=(*model, error.param or "tokenizer")) from error


@dataclass(frozen=True, slots=True, eq=False)
class Wiring:
    """The parts that a request passes through. ``picker``: None where no gateway asks."""

    config: Config
    scheduler: Scheduler
    directory: ModelDirectory
    director: Director
    picker: Picker | None
    source: Source | None
    queues: Mapping[str, ModelQueue]

    @classmethod
    def make(cls, draft: Draft, rooms: Rooms, before: Wiring | None) -> Wiring:
        """``before``: the wiring that it replaces."""
        config, common = draft.config, rooms.common
        upstream = rooms.upstream if before is None else rooms.upstream.with_timeouts(config.timeouts)
        directory = ModelDirectory(draft.runtimes, rooms.fleet, rooms.created)
        placer = Placer(directory, draft.scheduler, rooms.decisions, common.clock, common.observer, rooms.loads)
        for settings, runtime in zip(config.models, draft.runtimes, strict=True):
            runtime.tokens.parity.members = partial(_names, rooms.fleet, runtime.model)
            standby = runtime.standby
            standby.usable = partial(directory.usable, runtime.model)
            standby.why = partial(directory.why_unusable, runtime.model)
            want = partial(rooms.fleet.waker.want, runtime.model, standby.waits_in_vain)
            standby.begins = want if settings.wake == ON_DEMAND else lambda: None
            if (queue := draft.queues.get(runtime.model.name)) is not None:
                connect(queue, runtime.model, directory, placer, rooms.poller, rooms.host)
                if rooms.loads is not None:
                    queue.catch_up = rooms.loads.catch_up
        if rooms.host is not None:
            rooms.host.serve(draft.queues)
        before_send = _before_send(config, rooms.fleet)
        forwarder = Forwarder(rooms.fleet, upstream, config.pass_through, rooms.usage, before_send)
        handover = Handover(
            forwarder=forwarder,
            fleet=rooms.fleet,
            timeouts=config.timeouts,
            clock=common.clock,
            observer=common.observer,
            random=common.chance,
            state=rooms.handover,
        )
        hooks = _hooks(config, rooms, forwarder, upstream, directory)
        reception = Reception(
            *(directory, rooms.fleet, rooms.responses, rooms.chats, hooks.prompt_sources),
            *(config.listen, config.timeouts, config.pass_through),
            *(None if config.tenants == TenantsSettings() else rooms.gate, common.clock),
        )
        director = Director(
            reception,
            placer,
            forwarder,
            handover,
            hooks,
            draft.queues,
            retries=config.retries,
            idle=config.timeouts.idle,
            poller=rooms.poller,
            memory=rooms.memory,
            clock=common.clock,
            observer=common.observer,
        )
        picker = None if config.epp is None else _picker(config, rooms, draft, reception, forwarder, directory)
        return cls(config, draft.scheduler, directory, director, picker, draft.source, draft.queues)

    def retire(self, then: Callable[[], None]) -> None:
        """No request begins here any more: call ``then`` once the last one has ended."""
        picker = self.picker
        self.director.retire(then if picker is None else lambda: picker.retire(then))

    @property
    def models(self) -> dict[str, tuple[ModelSettings, ModelRuntime]]:
        """By name: the settings of a model, and its runtime."""
        pairs = zip(self.config.models, self.directory.runtimes, strict=True)
        return {settings.name: (settings, runtime) for settings, runtime in pairs}

    @property
    def tokens(self) -> set[ModelTokens]:
        return {runtime.tokens for runtime in self.directory.runtimes}


def _picker(
    config: Config,
    rooms: Rooms,
    draft: Draft,
    reception: Reception,
    forwarder: Forwarder,
    directory: ModelDirectory,
) -> Picker:
    from gateway.epp.destination import Addresses
    from gateway.epp.picker import Picker  # not before: protobuf is of no use without a gateway that asks

    common, settings = rooms.common, config.epp
    assert settings is not None
    placing = (directory, draft.scheduler, rooms.decisions, common.clock, common.observer, rooms.loads)
    placer = Placer(*placing, whole=settings.split != "headers")
    splits = None if settings.split in (None, "headers") else Placer(*placing)
    return Picker(
        *(reception, placer, splits, forwarder, directory, rooms.fleet, rooms.responses),
        *(Addresses(common.clock), draft.queues),
        settings=settings,
        retries=config.retries,
        poller=rooms.poller,
        memory=rooms.memory,
        clock=common.clock,
        observer=common.observer,
    )


def _before_send(config: Config, fleet: Fleet) -> Sequence[BeforeSend]:
    """Hooks on what legs send, where a model asks for them."""
    hooks: list[BeforeSend] = []
    if any(model.kv_cache.reannounce for model in config.models):
        hooks.append(Reannounce())
    if any(model.tokens.forward for model in config.models):
        hooks.append(IdForwarding(fleet))
    return tuple(hooks)


def _hooks(config: Config, rooms: Rooms, forwarder: Forwarder, upstream: Upstream, directory: ModelDirectory) -> Hooks:
    """The features that the configuration asks for."""
    common = rooms.common
    after_commit: dict[Kind, list[AfterCommit]] = {Kind.RESPONSES: [rooms.responses]}
    tokenized = [model for model in config.models if model.tokenizer is not None]
    if tokenized:  # a model's parity may want a sample at any time: its engines' counts differ, or none is proved
        audit = TokenAudit(forwarder, upstream, common.chance, rooms.token_audit)
        for kind in RENDERED:
            after_commit.setdefault(kind, []).append(audit)
    settings = {model.name: model for model in config.models}
    sources: list[PromptSource] = []
    if any(model.media.render or (model.tokens.ask and model.tokenizer) for model in config.models):
        sources.append(
            PromptQuestions(*(forwarder, upstream, directory, settings, common.clock, common.observer, rooms.questions))
        )
    return Hooks(tuple(sources), after_commit)


def topics(config: Config) -> list[str]:
    """The topics of the engines that connect to us with their KV events."""
    return [
        endpoint.kv_topic(model.name)
        for model in config.models
        for endpoint in model.endpoints
        if endpoint.kv_events.connects
    ]


def listener_of(config: Config, observer: Observer) -> EventListener | None:
    """The listener to which engines connect with their KV events, if any is configured to; it does not listen yet."""
    listen = config.kv_events.listen
    return None if listen is None else EventListener(listen, topics(config), observer)


def _runtime(settings: ModelSettings, config: Config, common: Common, before: Wiring | None) -> ModelRuntime:
    if before is None or settings.name not in before.models:
        return ModelRuntime(
            model=Model(settings.name, settings.aliases, settings.served_name, settings.handler),
            tokens=_tokens(settings, common),
            index=CacheIndex(settings.kv_cache, settings.name, common.clock, common.observer),
            admission=Admission(settings.limits, settings.name, common.clock, common.observer),
            standby=Standby(settings.limits, settings.name, common.clock),
            demand=DemandMeter(common.clock.monotonic()),
            budget=RetryBudget(config.retries.budget),
            slo=settings.slo,
            session=settings.session,
        )
    settings_before, runtime = before.models[settings.name]
    model = runtime.model
    if (model.aliases, model.served_name, model.handler) != (settings.aliases, settings.served_name, settings.handler):
        # A new object, since running requests keep the old settings. The learned values are copied, too.
        model = replace(model, aliases=settings.aliases, served_name=settings.served_name, handler=settings.handler)
    same_tokens = all(getattr(settings, f.name) == getattr(settings_before, f.name) for f in fields(TokenSettings))
    same_budget = config.retries.budget == before.config.retries.budget
    return replace(
        runtime,
        model=model,
        tokens=runtime.tokens if same_tokens else _tokens(settings, common),
        budget=runtime.budget if same_budget else RetryBudget(config.retries.budget),
        slo=settings.slo,
        session=settings.session,
    )


def _names(fleet: Fleet, model: Model) -> list[str]:
    return [endpoint.name for endpoint in fleet.endpoints(model)]


def _tokens(settings: ModelSettings, common: Common) -> ModelTokens:
    parity = Parity(settings.name, common.clock, common.observer, sample=settings.parity.sample)
    return ModelTokens(settings, settings.name, common.observer, parity=parity)


@contextlib.contextmanager
def blaming(config: Config, *path: str) -> Iterator[None]:
    """Adds file, line and key to a ConfigError of a room that does not know them."""
    try:
        yield
    except ConfigError as error:
        raise config.origin.error(path, error.message) from error.__cause__
