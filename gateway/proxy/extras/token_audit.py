"""Requests from an engine, after its answer, the token ids of the same body: the sample for ``tokens.parity``.

Rules: in the background, one request at a time for each model; no client waits for it. The result goes to
``tokens.parity`` only: an engine that does not answer keeps its health. The render route is asked first
(``.../render``: the exact ids, but vLLM has it only with ``--enable-scale-out``), then ``/tokenize``, which ignores
some fields of a body.
"""

from __future__ import annotations

import logging
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.api.body import JsonBody
from gateway.core.clock import SystemClock
from gateway.core.log_limit import LogLimit, left_out
from gateway.core.prompt import joined
from gateway.core.tasks import TaskSet
from gateway.framework import Endpoint
from gateway.proxy.extras.token_routes import ABSENCE, ABSENT, RENDERED, reporting_routes
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.call import Call
from gateway.proxy.serving.forward import Forwarder
from gateway.proxy.serving.hooks import AfterSettle
from gateway.proxy.serving.model_directory import ModelRuntime
from gateway.proxy.serving.not_asked import NotAsked
from gateway.proxy.upstream.commit import Committed
from gateway.proxy.upstream.legs import Leg, LegFailed
from gateway.proxy.upstream.send import Upstream
from gateway.tokens.agreement import FORMS, Form

log = logging.getLogger("kvgate.parity")

PATIENCE = 10.0
"""Seconds for one request: an engine that needs longer is too busy for an audit."""

MAX_BODY = 128 * 1024
"""The largest body in bytes that is sent a second time, some 30,000 tokens: to read and compare so many ids takes
2 ms."""

MAX_PROOF = 1024 * 1024
"""The same limit for the one comparison that an engine needs before it gets ids. It is larger, since some models get
only long prompts."""


@dataclass(frozen=True, slots=True)
class Questions:
    """``legs``: requests for the engine's ids of a body, sent in turn until one is answered. ``ids``: our ids of the
    prompt, which has this ``form``."""

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

    def after_commit(self, attempt: Attempt, committed: Committed) -> AfterSettle | None:
        """An ``AfterCommit``: an engine is asked once the request has given everything back."""
        runtime = attempt.call.runtime
        questions = self._choose(attempt) if runtime.tokens.parity.asks else None
        return None if questions is None else partial(self._ask_later, runtime, questions)

    def _choose(self, attempt: Attempt) -> Questions | None:
        """An answer has begun: prepare the requests to send after its end, if it is in the sample. They are prepared
        now, since the body is dropped later."""
        call, plan = attempt.call, attempt.plan
        prompt, request, body = call.prompt, call.request, call.body
        if prompt.own is None or not isinstance(body, JsonBody) or call.route.kind not in RENDERED:
            return None
        if request.indivisible or request.adapter is not None or attempt.model_name in self._state.busy:
            return None
        parity = call.runtime.tokens.parity
        sampled = parity.wants_ids(plan.decode.name, FORMS[call.route.kind], self._chance.random())
        unproved = [leg.endpoint for leg in plan.legs if parity.needs_proof(leg.endpoint.name)]
        if not sampled and not unproved:
            return None
        limit, now = MAX_PROOF if unproved else MAX_BODY, self._clock.monotonic()
        paths = reporting_routes(call.route, body, call.runtime.tokens)
        for endpoint in unproved or (plan.decode,):
            there = [path for path in paths if not self._state.absent.has(endpoint.engine, path, now)]
            legs = [leg for path in there if (leg := self._leg(call, endpoint, path, limit))]
            if legs:
                return Questions(legs, joined(prompt.own), FORMS[call.route.kind])
        return None

    def _ask_later(self, runtime: ModelRuntime, questions: Questions) -> None:
        """A request has ended well: send the prepared requests. Returns at once."""
        name = runtime.model.name
        if name not in self._state.busy:
            self._state.busy.add(name)
            self._state.tasks.start(self._compare(runtime, questions), name=f"compare ids of {name}")

    def _leg(self, call: Call, endpoint: Endpoint, path: str, limit: int) -> Leg | None:
        leg = self._forwarder.leg(call, endpoint, call.body)
        return None if len(leg.body) > limit else replace(leg, path=path, head=PATIENCE, total=PATIENCE)

    async def _compare(self, runtime: ModelRuntime, questions: Questions) -> None:
        try:
            for leg in questions.legs:
                ids = await self._ask(leg)
                if ids is not None:
                    started = leg.endpoint.engine.started
                    parity, name = runtime.tokens.parity, leg.endpoint.name
                    parity.compare_ids(name, questions.form, questions.ids, ids, started=started)
                    return
        finally:
            self._state.busy.discard(runtime.model.name)

    async def _ask(self, leg: Leg) -> list[int] | None:
        """The ids; None: the engine does not report them."""
        try:
            with await self._upstream.send(leg) as answer:
                raw = await answer.read()
        except LegFailed as failure:
            name = leg.endpoint.name
            if (count := self._often.admit(name, str(failure.cause))) is not None:
                log.info("%s: its ids cannot be requested: %s%s", name, failure.cause, left_out(count))
            return None
        if answer.status in ABSENT:
            self._state.absent.begin(leg.endpoint.engine, leg.path, self._clock.monotonic() + ABSENCE)
        if answer.status != 200:
            return None
        return _ids(raw)


def _ids(raw: bytes) -> list[int] | None:
    """``token_ids`` of a rendered request, or of the only one in a list; ``tokens`` of ``/tokenize``."""
    try:
        answer: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if not isinstance(answer, dict):
        return None
    ids = answer.get("token_ids", answer.get("tokens"))
    return ids if isinstance(ids, list) else None
