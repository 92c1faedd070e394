"""A request as plugins see it, and what became of it."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Any

from gateway.framework.fleet import Endpoint, Model
from gateway.framework.match import NO_MATCH, Matches


class Kind(StrEnum):
    """What a route asks for."""

    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDING = "embedding"
    RERANK = "rerank"
    SCORE = "score"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    TRANSCRIPTION = "transcription"


GENERATES = frozenset({Kind.CHAT, Kind.COMPLETION, Kind.RESPONSES, Kind.MESSAGES})
"""The kinds whose answers hold generated tokens: they decode, and have a TTFT."""


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request should be answered within, in seconds; None: no matter.

    ``ttft``: from its arrival to its first token. ``tpot``: from one token to the next, on average.
    """

    ttft: float | None = None
    tpot: float | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who a request is for: a team, a customer, an application. All requests of one key are one tenant's.

    ``weight``: above 0. Of two tenants with work waiting for one endpoint in one band, one of twice the weight is
    served twice as much.
    """

    name: str = "default"
    weight: float = 1.0


NO_TENANT = Tenant()
"""Of requests that name none."""


# 22 fields: each is one fact, and a group of them would cost every request one more object.
@dataclass(slots=True, eq=False)
class Request:
    """One client request.

    ``prompt_tokens``: exact if ``exact``, else estimated. ``token_ids``: see ``Prompt.ids``. ``matches``: by
    ``endpoint.slot``. ``expected_output``: tokens, 0 of what generates none. ``headers``: lower-case names, without
    credentials. ``slo``: what it should be answered within; None: nothing is asked.
    ``arrived``: Clock.monotonic(). ``indivisible``: a short word for why one endpoint must do all of it (``n``,
    ``beam-search``, ``echo``, ...); empty: its prefill may be another's than its decode. ``bound``: only one engine can
    serve it (it goes on from a response which that one keeps), draining or not.

    ``tenant``: who it is for. ``band``: of those who wait for room, a higher one is placed first, whatever its tenant;
    0 is usual, and what is below 0 may be shed first. ``ahead``: by ``endpoint.slot``, seconds of work that waits at
    the gateway for this endpoint and would be placed there before this request; a slot that is not there has none.
    Empty while nothing waits, and not empty while anything does.
    """

    id: str
    model: Model
    kind: Kind
    arrived: float
    adapter: str | None = None
    stream: bool = False
    max_tokens: int | None = None
    expected_output: float = 0.0
    cache_salt: str | None = None
    priority: int = 0
    session: str | None = None
    indivisible: str = ""
    bound: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    slo: Slo | None = None
    token_ids: array[int] = field(default_factory=partial(array, "I"))
    prompt_tokens: int = 0
    exact: bool = False
    matches: Matches = field(default_factory=Matches)
    tenant: Tenant = NO_TENANT
    band: int = 0
    ahead: Mapping[int, float] = field(default_factory=dict)

    def new_tokens(self, endpoint: Endpoint) -> int:
        """Prompt tokens that ``endpoint`` would have to compute: at least 1."""
        held = self.matches.get(endpoint.slot, NO_MATCH).expected_hit
        return self.prompt_tokens - held if self.prompt_tokens > held else 1


NO_COSTS: Mapping[str, float] = MappingProxyType({})

DECODE, PREFILL = "decode", "prefill"
"""Kinds of legs. ``DECODE``: its answer is the client's. ``PREFILL``: it computes the prompt for the decode leg. Others
may be planned if the gateway has a carrier for them."""


class PlannedLeg(tuple[str, Endpoint]):
    """One upstream request that a plan wants: ``PlannedLeg((kind, endpoint))``. A plain tuple is made without a call of
    Python, and each request makes one."""

    __slots__ = ()

    @property
    def kind(self) -> str:
        """What it is for; see ``DECODE``."""
        return self[0]

    @property
    def endpoint(self) -> Endpoint:
        return self[1]


@dataclass(frozen=True, slots=True, init=False)
class Plan:
    """Which endpoint serves which leg.

    ``legs``: at most one of each kind. The last one is the decode leg; alone, it does all of the request. ``reason`` is
    a short word for logs and metrics, one of few. ``connector``: the name of what brings the KV from one to the other.
    ``strict``: where that fails the request fails; else the decode leg computes the prompt itself. ``costs``: what the
    choice was made by, in seconds by a short word, best first; empty where it was made by something else.
    ``decode``: the endpoint whose answer is the client's. ``prefill``: the endpoint that computes the prompt for it;
    None: ``decode`` computes it itself.
    """

    legs: tuple[PlannedLeg, ...]
    reason: str
    connector: str
    strict: bool
    costs: Mapping[str, float] = field(compare=False)
    decode: Endpoint = field(init=False, compare=False, repr=False)
    prefill: Endpoint | None = field(init=False, compare=False, repr=False)

    def __init__(
        self,
        legs: tuple[PlannedLeg, ...],
        reason: str = "",
        connector: str = "nixl",
        strict: bool = False,
        costs: Mapping[str, float] = NO_COSTS,
    ) -> None:
        """Raises ValueError if there is no leg, the last one is no decode leg, or two are of one kind."""
        if not legs or legs[-1][0] != DECODE:
            raise ValueError(f"the last leg of a plan must be {DECODE!r}: {legs}")
        if len(legs) > 1 and len({leg.kind for leg in legs}) < len(legs):
            raise ValueError(f"a plan has two legs of one kind: {legs}")
        write = object.__setattr__  # it is frozen from here on
        write(self, "legs", legs)
        write(self, "reason", reason)
        write(self, "connector", connector)
        write(self, "strict", strict)
        write(self, "costs", costs)
        write(self, "decode", legs[-1][1])
        write(self, "prefill", self.endpoint(PREFILL) if len(legs) > 1 else None)

    @classmethod
    def of(
        cls,
        decode: Endpoint,
        *,
        reason: str = "",
        connector: str = "nixl",
        strict: bool = False,
        costs: Mapping[str, float] = NO_COSTS,
        **others: Endpoint,
    ) -> Plan:
        """``others``: the endpoints of the legs before the decode leg, by kind: ``Plan.of(one, prefill=other)``."""
        legs: tuple[PlannedLeg, ...] = (PlannedLeg((DECODE, decode)),)
        if others:
            legs = (*[PlannedLeg((kind, endpoint)) for kind, endpoint in others.items()], *legs)
        return cls(legs, reason, connector, strict, costs)

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple([leg.kind for leg in self.legs])

    def endpoint(self, kind: str) -> Endpoint | None:
        """Who serves the leg of this kind; None: there is no such leg."""
        for leg in self.legs:
            if leg.kind == kind:
                return leg.endpoint
        return None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a request, which plugins get at settle. Seconds; None if it does not apply.

    ``outcome`` is ``ok`` or an error's ``outcome`` word. ``cached_tokens`` is what the engine reported.
    """

    outcome: str
    status: int
    duration: float
    ttft: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
