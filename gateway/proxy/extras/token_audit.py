"""Asks an engine, after an answer, which token ids it makes of the same body: the sample that parity is judged by.

Rules: in the background, one question at a time for a model, never one that a client waits for; what comes of it goes
to ``tokens.parity`` and nowhere else: an engine that does not answer is no sicker for it. The route that renders is
asked first (``.../render``: the very ids, but vLLM has it only with ``--enable-scale-out``), then ``/tokenize``, which
does not know of every field of a body.
"""

from __future__ import annotations

import logging
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from gateway.api.body import JsonBody
from gateway.core.log_limit import LogLimit, left_out
from gateway.core.tasks import TaskSet
from gateway.framework import Endpoint
from gateway.framework.clock import SystemClock
from gateway.proxy.extras.not_asked import NotAsked
from gateway.proxy.extras.token_routes import ABSENCE, ABSENT, RENDERED, telling
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.call import Call
from gateway.proxy.serving.forward import Forwarder
from gateway.proxy.serving.model_directory import ModelRuntime
from gateway.proxy.upstream.legs import Leg, LegFailed
from gateway.proxy.upstream.send import Upstream
from gateway.tokens.agreement import Form, form_of

log = logging.getLogger("kvgate.parity")

PATIENCE = 10.0
"""Seconds for one question: an engine that needs longer for a text has better things to do."""

MAX_BODY = 128 * 1024
"""Bytes of a body that is sent a second time, some 30,000 tokens: to read and compare so many ids takes 2 ms."""

MAX_PROOF = 1024 * 1024
"""The same of one that is to prove an engine, once in its life: where all prompts are long, none other comes."""


@dataclass(frozen=True, slots=True)
class Questions:
    """``legs``: to be asked in turn, which ids an engine makes of the body. ``ids``: what ours are, of a prompt of this
    ``form``."""

    legs: Sequence[Leg]
    ids: array[int]
    form: Form


@dataclass(frozen=True, slots=True)
class TokenAuditState:
    """What outlives a configuration: made once, and used by the ``TokenAudit`` of each.

    ``tasks``: the questions under way. ``busy``: names of the models that they are about. ``absent``: engines without
    a route that renders.
    """

    tasks: TaskSet = field(default_factory=TaskSet)
    busy: set[str] = field(default_factory=set)
    absent: NotAsked = field(default_factory=NotAsked)

    async def close(self) -> None:
        await self.tasks.close()


class TokenAudit:
    """Compares the ids of some answered prompts. ``chance``: draws the sample."""

    def __init__(self, forwarder: Forwarder, upstream: Upstream, chance: random.Random, state: TokenAuditState) -> None:
        self._forwarder = forwarder
        self._upstream = upstream
        self._chance = chance
        self._clock = SystemClock()
        self._often = LogLimit(self._clock)
        self._state = state

    def choose(self, attempt: Attempt) -> Questions | None:
        """An answer has begun: what to ask once it has ended, if its ids are one of the sample. Later its body is not
        there any more."""
        call, plan = attempt.call, attempt.plan
        prompt, request, body = call.prompt, call.request, call.body
        if prompt.own is None or not isinstance(body, JsonBody) or call.route.kind not in RENDERED:
            return None
        if request.indivisible or request.adapter is not None or attempt.model_name in self._state.busy:
            return None
        parity = call.serving.tokens.parity
        sampled = parity.wants_ids(plan.decode.name, form_of(call.route.kind), self._chance.random())
        unproved = [leg.endpoint for leg in plan.legs if parity.needs_proof(leg.endpoint.name)]
        if not sampled and not unproved:
            return None
        limit = MAX_PROOF if unproved else MAX_BODY
        for endpoint in unproved or (plan.decode,):
            paths = self._paths(call, endpoint, body)
            legs = [leg for path in paths if (leg := self._leg(call, endpoint, path, limit))]
            if legs:
                return Questions(legs, prompt.own, form_of(call.route.kind))
        return None

    def ask(self, serving: ModelRuntime, questions: Questions) -> None:
        """A request has ended well: ask what was chosen. Returns at once."""
        name = serving.model.name
        if name not in self._state.busy:
            self._state.busy.add(name)
            self._state.tasks.start(self._compare(serving, questions), name=f"compare ids of {name}")

    def _paths(self, call: Call, endpoint: Endpoint, body: JsonBody) -> list[str]:
        now = self._clock.monotonic()
        paths = telling(call.route, body, call.serving.tokens)
        return [path for path in paths if not self._state.absent.has(endpoint.engine, path, now)]

    def _leg(self, call: Call, endpoint: Endpoint, path: str, limit: int) -> Leg | None:
        leg = self._forwarder.leg(call, endpoint, call.body)
        return None if len(leg.body) > limit else replace(leg, path=path, head=PATIENCE, total=PATIENCE)

    async def _compare(self, serving: ModelRuntime, questions: Questions) -> None:
        try:
            for leg in questions.legs:
                ids = await self._ask(leg)
                if ids is not None:
                    started = leg.endpoint.engine.started
                    parity, name = serving.tokens.parity, leg.endpoint.name
                    parity.compare_ids(name, questions.form, questions.ids, ids, started=started)
                    return
        finally:
            self._state.busy.discard(serving.model.name)

    async def _ask(self, leg: Leg) -> list[int] | None:
        """The ids; None: it does not tell."""
        try:
            with await self._upstream.send(leg) as answer:
                raw = await answer.read()
        except LegFailed as failure:
            name = leg.endpoint.name
            if (count := self._often.admit(name, str(failure.cause))) is not None:
                log.info("%s: its ids cannot be asked: %s%s", name, failure.cause, left_out(count))
            return None
        if answer.status in ABSENT:
            self._state.absent.begin(leg.endpoint.engine, leg.path, self._clock.monotonic() + ABSENCE)
        if answer.status != 200:
            return None
        return _ids(raw)


def _ids(raw: bytes) -> list[int] | None:
    """``token_ids`` of a rendered request, or of the only one in a list; ``tokens`` of ``/tokenize``."""
    try:
        told: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if isinstance(told, list) and len(told) == 1:
        told = told[0]
    if not isinstance(told, dict):
        return None
    ids = told.get("token_ids", told.get("tokens"))
    return ids if isinstance(ids, list) else None
