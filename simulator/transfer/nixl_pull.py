"""NIXL pull: the decode engine reads out of the prefill engine's memory, and that is how the other knows it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from simulator.engine import Engine
from simulator.errors import EngineDead
from simulator.job import Job
from simulator.settings import EngineSettings
from simulator.transfer.connector import Load, log
from simulator.transfer.content import GARBAGE, pack, serves
from simulator.transfer.nixl import ADDRESS_FIELDS, Nixl
from simulator.transfer.parameters import Leg, Transfer
from simulator.transfer.side_channel import RemoteLost

MIN_BACKOFF, MAX_BACKOFF = 1.0, 60.0
"""Seconds that a remote engine is left alone after its second failed read, and at most."""


class NixlPull(Nixl):
    """The decode engine reads out of the prefill engine's memory when it has room for it."""

    mode = "pull"

    def __init__(self, settings: EngineSettings, engine: Engine, name: str, rank: int) -> None:
        super().__init__(settings, engine, name, rank)
        self._backoffs: dict[str, tuple[float, float]] = {}

    def reject(self, transfer: Transfer) -> None:
        if transfer.leg is not Leg.DECODE:
            return
        if absent := [name for name in ("remote_block_ids", *ADDRESS_FIELDS) if name not in transfer.params]:
            raise EngineDead(f"do_remote_prefill without {', '.join(absent)}")
        self.spawn(self._notify(transfer.params), "kv-notification")

    def _check(self, params: Mapping[str, Any]) -> None:
        if not params.get("remote_block_ids"):
            raise EngineDead("do_remote_prefill without remote_block_ids")

    def _tail(self) -> dict[str, Any]:
        return {"remote_blocks_expiry_time": None, **super()._tail()}

    async def _load(self, job: Job, params: Mapping[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        engine_id = str(params["remote_engine_id"])
        if self._backoffs.get(engine_id, (0.0, 0.0))[1] > loop.time():
            self._finish(job, Load.FAILED)
            return
        try:
            if not isinstance(params.get("tp_size", 1), int):
                raise RemoteLost("tp_size is no number")
            remote = await self._meet(engine_id, params["remote_host"], params["remote_port"])
        except RemoteLost:
            self._finish(job, Load.FAILED)
            return
        blocks = params["remote_block_ids"]
        if not isinstance(blocks, list) or len(blocks) != 1 or not isinstance(blocks[0], list):
            raise EngineDead("remote_block_ids is no list of one group's blocks")
        began = loop.time()
        try:
            await asyncio.sleep(self.settings.kv_transfer_seconds * (job.prompt_tokens - job.local))
            content = (await remote.ask("read", params["remote_request_id"], blocks[0]))[0]
        except RemoteLost as error:
            log.warning("%s", error)
            self._stats.failed += 1
            self._back_off(engine_id, loop.time())
            self._finish(job, Load.FAILED)
            return
        self._count(job, began)
        self._finish(job, Load.ARRIVED if serves(content, job, job.prompt_tokens) else Load.GARBLED)

    async def _notify(self, params: Mapping[str, Any]) -> None:
        """Let a prefill engine free blocks that nobody reads."""
        try:
            remote = await self._meet(str(params["remote_engine_id"]), params["remote_host"], params["remote_port"])
            await remote.tell("done", params["remote_request_id"])
        except RemoteLost:
            return  # the handshake was counted; the lease ends by itself

    def _obey(self, kind: str, arguments: list[Any]) -> list[Any] | None:
        name = arguments[0]
        job = self._release(name)
        if kind == "done":
            return []
        return [pack(job) if job is not None and arguments[1] == job.blocks else GARBAGE]

    def _back_off(self, engine_id: str, now: float) -> None:
        """Forget a remote engine whose read failed. After the first time it is asked again at once."""
        if remote := self._remotes.pop(engine_id, None):
            remote.close()
        last, until = self._backoffs.get(engine_id, (-1.0, 0.0))
        if last < 0 or now - until > MAX_BACKOFF:
            self._backoffs[engine_id] = (0.0, now)
        else:
            seconds = min(max(2 * last, MIN_BACKOFF), MAX_BACKOFF)
            self._backoffs[engine_id] = (seconds, now + seconds)
