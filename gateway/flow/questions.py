"""What the workers of a host tell each other of those who wait: a host has one queue, its lead's.

    worker to lead     Question, Leave, Taken, Ended, Room, Forget
    lead to worker     Grant, Refusal, Waits
    worker to all      Opens

A question is a request without its prompt: what the lead's scheduler needs, what each endpoint holds of it by the
worker's index, and of its keys one for each ``STRETCH`` tokens. Times are of Clock.monotonic(), which is one clock for
all processes of a host; endpoints are called by their names.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import msgspec

from gateway.errors import GatewayError, NoEndpoint, PluginFailed, Saturated
from gateway.flow.live_kv import STRETCH
from gateway.framework import Endpoint, Kind, Request, Tenant
from gateway.framework.fleet import Model
from gateway.framework.match import Match, Matches, Source
from gateway.framework.request import Slo
from gateway.kvcache.index.keys import BlockKeys

LEADING = 1024
"""Token ids of the prompt that are told, 4 KB: filters that place by a hash of the beginning look at fewer."""


class Known(NamedTuple):
    """What an endpoint holds of a prompt, as ``Match`` has it. ``room``: as in ``Matches``; -1: not known."""

    endpoint: str
    gpu: int
    cpu: int
    storage: int
    expected_hit: int
    source: str
    room: int


# 28 fields: those of a request that a scheduler may read, and what is its own in the queue
class Question(msgspec.Struct, array_like=True, tag="question", frozen=True):
    """May this request be placed? ``number``: of the question, higher than any before it of the same worker.

    ``came``: when it came to the queue; ``deadline``: when it must have been placed; ``size``: bytes that are held for
    it. ``pinned_url``: as in ``Call``; ``form``: its body is a form. ``leading``: token ids; ``keys``: of its blocks,
    one for each ``unit`` tokens. The others are those of ``Request``.
    """

    number: int
    model: str
    came: float
    deadline: float
    size: int
    pinned_url: str
    form: bool
    known: Sequence[Known]
    leading: bytes
    keys: bytes
    unit: int
    request_id: str
    kind: str
    arrived: float
    adapter: str | None
    stream: bool
    max_tokens: int | None
    expected_output: float
    session: str | None
    indivisible: str
    bound: bool
    headers: Mapping[str, str]
    slo: tuple[float | None, float | None] | None
    prompt_tokens: int
    exact: bool
    tenant: tuple[str, float]
    band: int
    priority: int = 0


class Leave(msgspec.Struct, array_like=True, tag="leave", frozen=True):
    """It is not to be placed any more, or could not be placed where it was granted room: nothing is charged."""

    number: int


class Taken(msgspec.Struct, array_like=True, tag="taken", frozen=True):
    """It is booked where it was granted room."""

    number: int


class Ended(msgspec.Struct, array_like=True, tag="ended", frozen=True):
    """What was taken is over: as ``HeldQueue.settled``."""

    number: int
    output: float
    computed: int | None


class Room(msgspec.Struct, array_like=True, tag="room", frozen=True):
    """``endpoint`` may have room now, while somebody waits. ``first``: by a first token: the predicted seconds, if any,
    and those that it took. ``seconds``: of the engine, of a request that had not asked, and has ended."""

    model: str
    endpoint: str
    first: tuple[float | None, float] | None = None
    seconds: float = 0.0


class Forget(msgspec.Struct, array_like=True, tag="forget", frozen=True):
    """All that this worker has asked: it asks another lead now."""


class Grant(msgspec.Struct, array_like=True, tag="grant", frozen=True):
    """It may be placed on these endpoints, by the kinds of its legs; none: wherever it likes, since there is no queue.

    ``waited_for``: the endpoint and the reason for which it waited; empty: it did not.
    """

    number: int
    legs: Sequence[tuple[str, str]] = ()
    waited_for: str = ""


class Refusal(msgspec.Struct, array_like=True, tag="refusal", frozen=True):
    """It is refused. ``kind``: the error's class."""

    number: int
    kind: str
    message: str
    reason: str
    retry_after: float | None

    @classmethod
    def of(cls, number: int, error: Exception) -> Self:
        if not isinstance(error, GatewayError):
            return cls(number, "", str(error), "", None)
        return cls(number, type(error).__name__, error.message, error.reason, error.retry_after)

    def error(self) -> GatewayError:
        """As it was raised."""
        if self.kind == "Saturated":
            return Saturated(self.message, reason=self.reason, retry_after=self.retry_after)
        if self.kind == "NoEndpoint":
            return NoEndpoint(self.message, retry_after=self.retry_after)
        return PluginFailed(self.message, retry_after=self.retry_after)


class Waits(msgspec.Struct, array_like=True, tag="waits", frozen=True):
    """Whether anybody waits for an engine of ``model``."""

    model: str
    anybody: bool


class Opens(msgspec.Struct, array_like=True, tag="opens", frozen=True):
    """This worker knows the engines, so that its queues may hold the requests of all: those with the lowest number
    that has said so do."""


Message = Question | Leave | Taken | Ended | Room | Forget | Grant | Refusal | Waits | Opens


@dataclass(frozen=True, slots=True)
class Stay:
    """How a request waits: what ``Question`` has beside the request itself."""

    came: float
    deadline: float
    size: int
    pinned_url: str = ""
    form: bool = False


def question(number: int, request: Request, keys: BlockKeys, stay: Stay, endpoints: Sequence[Endpoint]) -> Question:
    """Of a request that has its ``matches`` by the slots of ``endpoints``."""
    every = max(1, STRETCH // keys.unit)
    slo, matches = request.slo, request.matches
    return Question(
        number=number,
        model=request.model.name,
        came=stay.came,
        deadline=stay.deadline,
        size=stay.size,
        pinned_url=stay.pinned_url,
        form=stay.form,
        known=[
            Known(one.name, *matches[one.slot][:4], str(matches[one.slot].source), matches.room.get(one.slot, -1))
            for one in endpoints
            if one.slot in matches or one.slot in matches.room
        ],
        leading=request.token_ids[:LEADING].tobytes(),
        keys=keys.values[every - 1 :: every].tobytes(),
        unit=every * keys.unit,
        request_id=request.id,
        kind=str(request.kind),
        arrived=request.arrived,
        adapter=request.adapter,
        stream=request.stream,
        max_tokens=request.max_tokens,
        expected_output=request.expected_output,
        session=request.session,
        indivisible=request.indivisible,
        bound=request.bound,
        headers=dict(request.headers),
        slo=None if slo is None else (slo.ttft, slo.tpot),
        prompt_tokens=request.prompt_tokens,
        exact=request.exact,
        tenant=(request.tenant.name, request.tenant.weight),
        band=request.band,
        priority=request.priority,
    )


def request_of(asked: Question, model: Model) -> Request:
    """The request, as far as it was told. Raises ValueError for what no worker of this version tells."""
    name, weight = asked.tenant
    return Request(
        *(asked.request_id, model, Kind(asked.kind), asked.arrived, asked.adapter, asked.stream, asked.max_tokens),
        expected_output=asked.expected_output,
        priority=asked.priority,
        session=asked.session,
        indivisible=asked.indivisible,
        bound=asked.bound,
        headers=asked.headers,
        slo=None if asked.slo is None else Slo(*asked.slo),
        token_ids=array("I", asked.leading),
        prompt_tokens=asked.prompt_tokens,
        exact=asked.exact,
        tenant=Tenant(name, weight),
        band=asked.band,
    )


def keys_of(asked: Question) -> BlockKeys:
    """Enough for ``LiveKv``; no index knows them."""
    return BlockKeys(array("Q", asked.keys), asked.unit, asked.prompt_tokens, asked.exact, True)


def matches_of(asked: Question, endpoints: Sequence[Endpoint]) -> Matches:
    """By the slots of ``endpoints``."""
    known = {one.endpoint: one for one in asked.known}
    matches, room = Matches(), {}
    for endpoint in endpoints:
        found = known.get(endpoint.name)
        if found is not None:
            _, gpu, cpu, storage, hit, source, free = found
            matches[endpoint.slot] = Match(gpu, cpu, storage, hit, Source(source))
            if free >= 0:
                room[endpoint.slot] = free
    matches.room = room
    return matches
