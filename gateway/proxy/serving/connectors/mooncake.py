"""vLLM's MooncakeConnector: the gateway names the transfer, and sends the decode engine the id of the prefill engine,
which that engine's bootstrap server reports. Both legs go out at once, and the decode engine waits for the KV.

One question to a server is shared by all requests that need its answer. A request that ends does not end the question
for the others; the last one does.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.api.body import JsonBody
from gateway.core.tasks import TaskSet
from gateway.framework import Engine
from gateway.proxy.serving.connectors.contract import Fetch, Pair
from gateway.proxy.serving.connectors.one_token import one_token
from gateway.proxy.serving.handover_failures import HandoverCause, HandoverFailed

KNOWN_FOR = 10.0
"""Seconds for which an engine's ids are believed: they change when it restarts, which a scrape shows a second later."""

FAILED_FOR = 1.0
"""Seconds for which a failure is believed: about as long as it takes a scrape to show that the engine is down. A silent
server costs ``timeouts.connect`` once for all who ask, and from then on one request at a time: the others know."""

_RANKS = msgspec.json.Decoder(dict[str, dict[str, Any]])


class Mooncake:
    """``fetch``: asks a bootstrap server. ``now``: seconds."""

    at_once = True
    decode_can_compute = True

    def __init__(self, fetch: Fetch, now: Callable[[], float]) -> None:
        self._fetch = fetch
        self._now = now
        self._questions: dict[str, _Question] = {}
        self._tasks = TaskSet()

    async def open(self, pair: Pair) -> MooncakeTransfer:
        host = pair.prefill.engine.host
        address = f"http://[{host}]" if ":" in host else f"http://{host}"
        address += f":{pair.bootstrap_port}"
        ids = await self._ids(address, pair.prefill.engine)
        rank = pair.prefill.rank
        if rank is None and len(ids) > 1:
            raise HandoverFailed(
                HandoverCause.BOOTSTRAP, f"{address} has {len(ids)} ranks, and the endpoint is none of them"
            )
        if rank is not None and rank >= len(ids):
            raise HandoverFailed(HandoverCause.BOOTSTRAP, f"{address} does not know rank {rank}")
        # Counted, not named: behind a hybrid load balancer the ranks of a node begin above 0, but ours at 0.
        return MooncakeTransfer(pair, ids[rank or 0], address)

    async def _ids(self, address: str, engine: Engine) -> Sequence[str]:
        """The engine ids in the order of their ranks; not empty. Raises HandoverFailed."""
        question = self._questions.get(address)
        if question is not None and not question.concerns(engine):
            question = None
        if question is None or not question.stands(self._now()):
            before = None if question is None else question.failure
            # Whoever waits for it takes its failure, and the last one to leave cancels it.
            task = self._tasks.start(self._ask(address), name=f"bootstrap of {engine.name}", awaited=True)
            question = self._questions[address] = _Question(task, engine, before)
        elif question.failure is not None:
            raise question.failure.again()
        answer = await question.answer()
        if isinstance(answer, _Failure):
            raise answer.again()
        return answer.ids

    async def _ask(self, address: str) -> _Ids | _Failure:
        try:
            ids = _read(address, await self._fetch(f"{address}/query"))
        except HandoverFailed as failure:
            return _Failure(self._now() + FAILED_FOR, failure.cause, failure.detail)
        return _Ids(self._now() + KNOWN_FOR, ids)


def _read(address: str, answer: bytes) -> Sequence[str]:
    try:
        ranks = _RANKS.decode(answer)
        ids = [ranks[rank]["engine_id"] for rank in sorted(ranks, key=int)]
    except (msgspec.MsgspecError, ValueError, RecursionError, KeyError) as error:
        raise HandoverFailed(HandoverCause.BOOTSTRAP, f"{address}/query: {error}") from None
    if not ids or not all(isinstance(value, str) and value for value in ids):
        raise HandoverFailed(HandoverCause.BOOTSTRAP, f"{address}/query names no engine")
    return ids


@dataclass(frozen=True, slots=True)
class _Ids:
    """``until``: believed till then."""

    until: float
    ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Failure:
    """``until``: believed till then."""

    until: float
    cause: str
    detail: str

    def again(self) -> HandoverFailed:
        """One for each request: an exception that is raised twice gathers both tracebacks."""
        return HandoverFailed(self.cause, self.detail)


class _Question:
    """``task``: asks one server, and is its answer from then on. ``engine``: whose it is, as started now.

    ``before``: what the question before this one ended with, which holds until this one is answered.
    """

    def __init__(self, task: asyncio.Task[_Ids | _Failure], engine: Engine, before: _Failure | None) -> None:
        self._task = task
        self._engine = engine
        self._started = engine.started
        self._before = before
        self._waiting = 0
        self._left = False

    def concerns(self, engine: Engine) -> bool:
        """False after a restart: the ids are others."""
        return self._engine is engine and self._started == engine.started

    def stands(self, now: float) -> bool:
        """Whether it is under way, or its answer is still believed."""
        if self._answered:
            return self._task.result().until > now
        return not (self._left or self._task.done())

    @property
    def failure(self) -> _Failure | None:
        """What it says, where that is known without waiting, and is a failure."""
        if not self._answered:
            return self._before
        answer = self._task.result()
        return answer if isinstance(answer, _Failure) else None

    async def answer(self) -> _Ids | _Failure:
        self._waiting += 1
        try:
            if not self._task.done():
                await asyncio.wait((self._task,))
        finally:
            self._waiting -= 1
            if not self._waiting and not self._task.done():
                self._left = True
                self._task.cancel()
        return self._task.result()

    @property
    def _answered(self) -> bool:
        return self._task.done() and not self._task.cancelled() and self._task.exception() is None


class MooncakeTransfer:
    lease: float | None = None
    notices_death = False

    def __init__(self, pair: Pair, engine_id: str, address: str) -> None:
        self._kind = pair.kind
        self._id = f"xfer-{uuid.uuid4()}"
        self._engine_id = engine_id
        self._address = address

    def prefill(self, body: JsonBody) -> JsonBody:
        leg = one_token(body, self._kind)
        # Only an answer that ended by its length is sent on: nothing else may end it.
        leg.set("ignore_eos", True)
        for name in ("stop", "stop_token_ids", "stop_sequences"):
            leg.drop(name)
        leg.set(
            "kv_transfer_params",
            {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": self._id},
        )
        return leg

    def decode(self, body: JsonBody, answer: bytes) -> JsonBody:
        leg = body.copy()
        leg.set(
            "kv_transfer_params",
            {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "transfer_id": self._id,
                "remote_engine_id": self._engine_id,
                "remote_bootstrap_addr": self._address,
            },
        )
        return leg
