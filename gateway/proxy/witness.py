"""Asks an engine, after an answer, which token ids it makes of the same body: the sample that parity is judged by.

Rules: in the background, one question at a time for a model, never one that a client waits for; what comes of it goes
to ``tokens.parity`` and nowhere else: an engine that does not answer is no sicker for it. The route that renders is
asked first (``.../render``: the very ids, but vLLM has it only with ``--enable-scale-out``), then ``/tokenize``, which
does not know of every field of a body.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from gateway.api.body import JsonBody
from gateway.framework import Clock, Endpoint, Engine, LogLimit, SystemClock, TaskSet, left_out
from gateway.proxy.directory import Serving
from gateway.proxy.exchange import Exchange, Questions
from gateway.proxy.forward import Forwarder
from gateway.proxy.legs import Leg, LegFailed
from gateway.proxy.telling import ABSENCE, ABSENT, RENDERED, telling
from gateway.proxy.upstream import Upstream
from gateway.tokens.agreement import form_of

log = logging.getLogger("kvgate.parity")

PATIENCE = 10.0
"""Seconds for one question: an engine that needs longer for a text has better things to do."""

MAX_BODY = 128 * 1024
"""Bytes of a body that is sent a second time, some 30,000 tokens: to read and compare so many ids takes 2 ms."""

MAX_PROOF = 1024 * 1024
"""The same of one that is to prove an engine, once in its life: where all prompts are long, none other comes."""


@dataclass(frozen=True, slots=True)
class _Absence:
    """``until``: Clock.monotonic(). ``started``: the engine's process that had no such route, as ``Engine.started``."""

    until: float
    started: float | None


class Witness:
    """Compares the ids of some answered prompts. ``chance``: draws the sample. ``after``: whose place it takes, under
    other settings: its questions are this one's to close."""

    def __init__(
        self, forwarder: Forwarder, upstream: Upstream, chance: random.Random, after: Witness | None = None
    ) -> None:
        self._forwarder = forwarder
        self._upstream = upstream
        self._chance = chance
        self._often = LogLimit(SystemClock())
        self._tasks: TaskSet = TaskSet() if after is None else after._tasks
        self._busy: set[str] = set() if after is None else after._busy
        self._absent: dict[tuple[str, str], _Absence] = {} if after is None else after._absent

    async def close(self) -> None:
        await self._tasks.close()

    def choose(self, exchange: Exchange) -> None:
        """An answer has begun: enter the questions into ``exchange`` if its ids are one of the sample. Later its body
        is not there any more."""
        serving, prompt, plan, body = exchange.serving, exchange.prompt, exchange.plan, exchange.body
        if serving is None or prompt is None or plan is None or prompt.own is None:
            return
        if not isinstance(body, JsonBody) or exchange.route.kind not in RENDERED:
            return
        assert exchange.request is not None
        if exchange.request.indivisible or exchange.request.adapter is not None or serving.model.name in self._busy:
            return
        parity = serving.tokens.parity
        sampled = parity.wants_ids(plan.decode.name, form_of(exchange.route.kind), self._chance.random())
        unproved = [one for one in (plan.prefill, plan.decode) if one is not None and parity.wants_proof(one.name)]
        if not sampled and not unproved:
            return
        limit = MAX_PROOF if unproved else MAX_BODY
        for endpoint in unproved or (plan.decode,):
            paths = self._paths(exchange, endpoint, body)
            legs = [leg for path in paths if (leg := self._leg(exchange, endpoint, path, limit))]
            if legs:
                exchange.questions = Questions(legs, prompt.own, form_of(exchange.route.kind))
                return

    def settled(self, exchange: Exchange) -> None:
        """A request has ended: ask what was chosen. Returns at once."""
        questions, serving = exchange.questions, exchange.serving
        if questions is None or serving is None or exchange.outcome != "ok" or serving.model.name in self._busy:
            return
        self._busy.add(serving.model.name)
        compared = self._compare(serving, questions, exchange.clock)
        self._tasks.start(compared, name=f"compare ids of {serving.model.name}")

    def _paths(self, exchange: Exchange, endpoint: Endpoint, body: JsonBody) -> list[str]:
        assert exchange.serving is not None
        now = exchange.clock.monotonic()
        paths = telling(exchange.route, body, exchange.serving.tokens)
        return [path for path in paths if not self._is_absent(endpoint.engine, path, now)]

    def _is_absent(self, engine: Engine, path: str, now: float) -> bool:
        absence = self._absent.get((engine.url, path))
        return absence is not None and now < absence.until and absence.started == engine.started

    def _leg(self, exchange: Exchange, endpoint: Endpoint, path: str, limit: int) -> Leg | None:
        assert exchange.body is not None
        leg = self._forwarder.leg(exchange, endpoint, exchange.body)
        return None if len(leg.body) > limit else replace(leg, path=path, head=PATIENCE, total=PATIENCE)

    async def _compare(self, serving: Serving, questions: Questions, clock: Clock) -> None:
        try:
            for leg in questions.legs:
                ids = await self._ask(leg, clock)
                if ids is not None:
                    started = leg.endpoint.engine.started
                    parity, name = serving.tokens.parity, leg.endpoint.name
                    parity.rendered(name, questions.form, questions.ids, ids, started=started)
                    return
        finally:
            self._busy.discard(serving.model.name)

    async def _ask(self, leg: Leg, clock: Clock) -> list[int] | None:
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
            engine = leg.endpoint.engine
            self._absent[engine.url, leg.path] = _Absence(clock.monotonic() + ABSENCE, engine.started)
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
