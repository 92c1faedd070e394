"""Models, engines and endpoints as everything sees them. Only ``gateway.fleet`` creates, changes or drops them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol
from urllib.parse import urlsplit

from gateway.framework.cost import CostModel, Rates, Sums


class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of an engine's ``GET /v1/models``. ``parent`` is set for an adapter."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


@dataclass(slots=True, eq=False)
class Model:
    """What a client names.

    ``served_name``: the name in the engines' bodies; None: the first id without a parent that an engine reports.
    ``expected_output``: running estimate of an answer's tokens, learned at settle. ``event_tokens``: the same of the
    tokens that one event of its streams brings.
    """

    name: str
    aliases: tuple[str, ...] = ()
    served_name: str | None = None
    handler: str = "default"
    expected_output: float = 256.0
    event_tokens: float = 1.0


@dataclass(slots=True, eq=False, weakref_slot=True)
class Engine:
    """One URL.

    ``url`` has no trailing slash; it is ``unix://PATH`` for a Unix socket. ``up``: requests may be sent to it.
    ``down_reason`` is a short word for a metric's label, empty while it is healthy. ``spared``: it is not, and is
    ``up`` all the same, since too many others are out. ``latency``: seconds, a running mean of the connections'
    measured round trip; None before the first. ``started``: the engine's ``process_start_time_seconds``; None if it
    does not report it.
    """

    url: str
    name: str
    up: bool = False
    down_reason: str = "not-probed"
    spared: bool = False
    version: str | None = None
    served: Mapping[str, ServedModel] = field(default_factory=dict)
    latency: float | None = None
    started: float | None = None

    @property
    def host(self) -> str:
        """Where its other ports are: its URL's host, IPv6 without brackets. Behind a Unix socket: on this machine."""
        return urlsplit(self.url).hostname or "127.0.0.1"


@dataclass(frozen=True, slots=True)
class TransferStats:
    """KV that an engine has moved between itself and others, as it counts that itself: sums over ``count`` transfers.

    ``seconds``: each worker of an engine (tensor parallel) moves its own part, and its time is added to the others',
    although they work at once. ``tokens``: of prompts whose KV came from another engine. If engines push, the receiver
    of the KV reports ``tokens``, and the sender the rest; if they pull, the receiver reports all.
    """

    count: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0
    tokens: float = 0.0


NO_TRANSFERS = TransferStats()


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """What the last scrape said of one endpoint. ``at``: Clock.monotonic() of it; None: never scraped.

    ``kv_usage`` is 0..1 (blocks in use by live requests). ``kv_capacity``: tokens. ``block_size``: tokens; 0 unknown.
    The counters are in tokens since the engine's start; ``external_*``: in what a KV connector reaches. ``kv_expired``:
    requests, since its start, whose KV it computed for another engine, which did not fetch it in time. ``kv_fetching``:
    waiting requests by the stage of fetching their KV from another engine; empty where it has no connector for that.
    ``transfers``: since its start, by NIXL; ``recent_transfers``: the same where what is older counts less,
    which says how fast it is now.
    """

    at: float | None = None
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    kv_capacity: int = 0
    block_size: int = 0
    prefix_queries: float = 0.0
    prefix_hits: float = 0.0
    external_queries: float = 0.0
    external_hits: float = 0.0
    kv_expired: float = 0.0
    kv_fetching: Mapping[str, int] = field(default_factory=dict)
    transfers: TransferStats = NO_TRANSFERS
    recent_transfers: TransferStats = NO_TRANSFERS

    @property
    def fetches(self) -> int:
        """Requests whose KV has yet to come from another engine. vLLM's last stage is of those that have it."""
        return sum(count for stage, count in self.kv_fetching.items() if stage != "completed_waiting")


class Load(Protocol):
    """A read-only view of an endpoint's ledger: the work that we sent and have not got back, and what others sent.

    Ours is also what other processes of this gateway have sent, as they tell it. Counts are exact and immediate for
    this process's own work; ``foreign_*`` comes from scrapes and decays.
    """

    def sums(self, now: float) -> Sums:
        """All of it at ``now``, which is Clock.monotonic(): for who asks so much of it for each candidate that the
        single figures would cost more."""
        ...

    @property
    def rates(self) -> Rates:
        """What the endpoint costs, as it was last made. It is valid before ``rates.until``, which each change of the
        load puts into the past; from then on ``rates_at`` makes it anew. So who compares many endpoints calls only
        those that have changed since the last request."""
        ...

    def rates_at(self, now: float) -> Rates:
        """What the endpoint costs at ``now``, which is Clock.monotonic()."""
        ...

    @property
    def requests(self) -> int:
        """Ours, from placement to settle."""
        ...

    @property
    def own_requests(self) -> int:
        """Of these, those that this process sent, and no other one of this gateway."""
        ...

    @property
    def own_tokens(self) -> tuple[int, int]:
        """Of ``prefill_tokens`` and of ``kv_tokens``, those of the same requests."""
        ...

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens of ours that the endpoint does not hold and has not yet computed."""
        ...

    @property
    def unallocated_tokens(self) -> int:
        """Of these, those for which the endpoint has yet to find room in its KV memory, as far as is known."""
        ...

    @property
    def prefill_attention(self) -> float:
        """Of ``prefill_tokens``, each with the tokens before it in its prompt: n * (context + n / 2), added up."""
        ...

    @property
    def kv_tokens(self) -> int:
        """Tokens of our requests resident in its KV memory: prompts, and what has been generated."""
        ...

    @property
    def foreign_requests(self) -> float: ...

    @property
    def foreign_kv_tokens(self) -> float: ...


@dataclass(slots=True, eq=False)
class Endpoint:
    """What a request is placed on.

    ``slot``: small integer, unique among live endpoints of the process; the index's bit. ``rank``: data-parallel rank
    sent as ``X-data-parallel-rank``; None where the engine is one endpoint. ``warmth``: 0..1, below 1 during the slow
    start after it came back. ``in_flight``: requests that are placed on it and not settled; ``load`` counts those of
    all models on the same engine.
    """

    slot: int
    name: str
    model: Model
    engine: Engine
    load: Load
    cost: CostModel
    rank: int | None = None
    role: Role = Role.BOTH
    labels: Mapping[str, str] = field(default_factory=dict)
    metrics: EngineMetrics = field(default_factory=EngineMetrics)
    warmth: float = 1.0
    draining: bool = False
    in_flight: int = 0
