"""The types of plugins.yaml: each room's settings, and the whole ``Config``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from gateway.api.settings import PassThroughSettings, SessionSettings, SloSettings
from gateway.config.origin import Origin
from gateway.discovery.settings import DiscoverSettings
from gateway.epp.settings import PickerSettings
from gateway.fleet.settings import CostSettings, EndpointSettings, FleetSettings
from gateway.flow.settings import FAIR, FlowSettings, QueueSettings
from gateway.kvcache.settings import CacheSettings, ListenerSettings
from gateway.observability.settings import LogSettings
from gateway.proxy.settings import KeySettings, ListenSettings, RetrySettings, TimeoutSettings
from gateway.scheduling.settings import HandlerSettings, PluginSettings, ProfileSettings, WeightedScorer
from gateway.sharing.settings import SharingSettings
from gateway.tenants.settings import TenantsSettings
from gateway.tokens.settings import TokenSettings

DEFAULT_PLUGINS = (
    PluginSettings(name="healthy", type="healthy"),
    PluginSettings(name="role", type="role", parameters={"allow": ["decode", "both"]}),
    PluginSettings(name="slo", type="slo"),
    PluginSettings(name="cost", type="placement-cost"),
    PluginSettings(name="best", type="max-score"),
    PluginSettings(name=FAIR, type="fair-cost"),
)
DEFAULT_PROFILES = (
    ProfileSettings(
        name="default",
        filters=("healthy", "role", "slo"),
        scorers=(WeightedScorer(plugin="cost"),),
        picker="best",
    ),
    # No ``role`` filter: the handler itself uses only endpoints that may prefill, and the list of plugins stays short.
    ProfileSettings(
        name="prefill",
        filters=("healthy",),
        scorers=(WeightedScorer(plugin="cost"),),
        picker="best",
    ),
    ProfileSettings(
        name="decode",
        filters=("healthy", "role"),
        scorers=(WeightedScorer(plugin="cost"),),
        picker="best",
    ),
)
DEFAULT_HANDLERS = (
    HandlerSettings(name="default", type="single", parameters={"profile": "default"}),
    HandlerSettings(
        name="prefill-decode", type="prefill-decode", parameters={"prefill": "prefill", "decode": "decode"}
    ),
)


ON_DEMAND: Final = "on-demand"


@dataclass(frozen=True, slots=True)
class ModelSettings(TokenSettings):
    """A model: what clients call it, how its prompts are tokenized, and the engines that serve it.

    ``endpoints``: engines that are always there; those that ``discover`` finds, and those that register themselves, are
    added. ``aliases``: other names; ``*`` stands for all that its engines serve. ``served_name``: the model's name in
    the engines' bodies; None: learned from their ``/v1/models``.

    ``wake``: who wakes an engine where all of them sleep: operators (``manual``), or the first request that waits for
    one (``on-demand``).
    """

    name: str = field(kw_only=True)
    endpoints: tuple[EndpointSettings, ...] = ()
    discover: tuple[DiscoverSettings, ...] = ()
    aliases: tuple[str, ...] = ()
    served_name: str | None = None
    handler: str = "default"
    limits: FlowSettings = field(default_factory=FlowSettings)
    queue: QueueSettings | None = None
    kv_cache: CacheSettings = field(default_factory=CacheSettings)
    slo: SloSettings = field(default_factory=SloSettings)
    session: SessionSettings = field(default_factory=SessionSettings)
    cost: CostSettings = field(default_factory=CostSettings)
    wake: Literal["manual", "on-demand"] = "manual"

    def __post_init__(self) -> None:
        TokenSettings.__post_init__(self)
        if not self.name:
            raise ValueError("name must not be empty")
        if self.wake == ON_DEMAND and not self.limits.no_endpoint_timeout:
            raise ValueError(
                "wake: on-demand needs limits.no_endpoint_timeout: requests wait until the engine is awake"
            )


@dataclass(frozen=True, slots=True)
class Config:
    """plugins.yaml. ``plugins``, ``profiles`` and ``handlers`` replace the defaults as a whole where they are given.

    A default handler whose profiles are not among those given is dropped, unless a model asks for it.

    ``epp``: of the endpoint picker; None: no gateway asks this one. ``state``: a file for what was learned; None: each
    start learns anew.
    ``origin`` is no key: where each value came from, for errors found later (``wiring``) and for ``describe``.
    """

    models: tuple[ModelSettings, ...]
    listen: ListenSettings = field(default_factory=ListenSettings)
    epp: PickerSettings | None = None
    timeouts: TimeoutSettings = field(default_factory=TimeoutSettings)
    retries: RetrySettings = field(default_factory=RetrySettings)
    client_keys: KeySettings = field(default_factory=KeySettings)
    tenants: TenantsSettings = field(default_factory=TenantsSettings)
    sharing: SharingSettings = field(default_factory=SharingSettings)
    pass_through: PassThroughSettings = field(default_factory=PassThroughSettings)
    fleet: FleetSettings = field(default_factory=FleetSettings)
    kv_events: ListenerSettings = field(default_factory=ListenerSettings)
    log: LogSettings = field(default_factory=LogSettings)
    state: str | None = None
    plugins: tuple[PluginSettings, ...] = DEFAULT_PLUGINS
    profiles: tuple[ProfileSettings, ...] = DEFAULT_PROFILES
    handlers: tuple[HandlerSettings, ...] = DEFAULT_HANDLERS
    origin: Origin = field(default_factory=Origin, repr=False, compare=False, metadata={"key": False})

    @property
    def tenants_state(self) -> str | None:
        """The file of what tenants have used: ``tenants.state``, else one beside ``state``; None: it is not kept."""
        if self.tenants.state is not None or self.state is None or self.tenants == TenantsSettings():
            return self.tenants.state
        return f"{self.state}.tenants"

    def __post_init__(self) -> None:
        if self.state == "":
            raise ValueError("state must not be empty")
        if self.epp is not None and self.listen.workers != 1:
            raise ValueError(
                "epp needs listen.workers: 1: gateways keep one connection, which one process has; the gateways in "
                "front use the other cores"
            )
        if not self.models:
            raise ValueError("models must name at least one model")
        if self.handlers is DEFAULT_HANDLERS and self.profiles is not DEFAULT_PROFILES:
            asked, profiles = {model.handler for model in self.models}, {profile.name for profile in self.profiles}
            # All parameters of a default handler are names of profiles.
            kept = tuple(
                one for one in DEFAULT_HANDLERS if one.name in asked or profiles.issuperset(one.parameters.values())
            )
            object.__setattr__(self, "handlers", kept)
