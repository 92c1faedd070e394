"""NIXL push: the decode engine registers its blocks with the prefill engine, which writes into them when it is done.

The two find each other by the request's name without what vLLM appends to it: both legs need the same X-Request-Id and
the same route, or they wait for ever. Nothing else ends that wait either: not the lease, and not an engine's death.
"""

from __future__ import annotations

import asyncio
import re
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

SUFFIX = re.compile(r"-[0-9a-f]{8}$", re.IGNORECASE)
"""What vLLM appends to a request's name."""


def base_name(name: str) -> str:
    """A request's name as its client gave it."""
    return SUFFIX.sub("", name)


class NixlPush(Nixl):
    """``remote_block_ids`` are not looked at: the prefill engine knows its own."""

    mode = "push"

    def __init__(self, settings: EngineSettings, engine: Engine, name: str, rank: int) -> None:
        super().__init__(settings, engine, name, rank)
        self._finished: dict[str, Job] = {}
        self._registered: dict[str, list[Any]] = {}
        self._receiving: dict[str, tuple[Job, float]] = {}

    def reject(self, transfer: Transfer) -> None:
        """Nobody is told: the prefill engine keeps the blocks until their lease ends."""
        if transfer.leg is Leg.DECODE and any(name not in transfer.params for name in ADDRESS_FIELDS):
            raise EngineDead("do_remote_prefill without an address")

    def _check(self, params: Mapping[str, Any]) -> None:
        if absent := [name for name in (*ADDRESS_FIELDS, "tp_size") if name not in params]:
            raise EngineDead(f"do_remote_prefill without {', '.join(absent)}")

    async def _load(self, job: Job, params: Mapping[str, Any]) -> None:
        """Register a job's blocks; the prefill engine's write is the end of it."""
        self._receiving[job.id] = (job, asyncio.get_running_loop().time())
        try:
            remote = await self._meet(str(params["remote_engine_id"]), params["remote_host"], params["remote_port"])
            await remote.tell("register", job.id, self.name, self.settings.side_channel_host, self.port)
        except RemoteLost:
            del self._receiving[job.id]
            self._finish(job, Load.FAILED)

    def _keep(self, job: Job) -> None:
        base = base_name(job.id)
        registration = self._registered.pop(base, None)
        if registration is not None:
            self.spawn(self._write(job, registration), "kv-write")
        else:
            self._finished[base] = job

    def _expire(self, job: Job) -> None:
        self._finished.pop(base_name(job.id), None)
        super()._expire(job)

    def _obey(self, kind: str, arguments: list[Any]) -> list[Any] | None:
        if kind == "write":
            self._receive_write(*arguments)
            return ["ok"]
        base = base_name(str(arguments[0]))
        job = self._finished.pop(base, None)
        if job is not None:
            self.spawn(self._write(job, arguments), "kv-write")
        else:
            self._registered[base] = arguments
        return []

    def _receive_write(self, name: str, content: bytes) -> None:
        if name not in self._receiving:
            self._stats.notifications_after_expiry += 1
            return
        job, began = self._receiving.pop(name)
        self._count(job, began)
        self._finish(job, Load.ARRIVED if serves(content, job, job.prompt_tokens) else Load.GARBLED)

    async def _write(self, job: Job, registration: list[Any]) -> None:
        """Write a prefill leg's KV to where the decode engine wants it, and free it."""
        request, engine_id, host, port = registration
        try:
            remote = await self._meet(engine_id, host, port)
            await asyncio.sleep(self.settings.kv_transfer_seconds * job.prompt_tokens)
            content = pack(job) if self.leases.find(job.id) is not None else GARBAGE
            await remote.ask("write", request, content)
        except RemoteLost as error:
            log.warning("%s cannot be written: %s", job.id, error)
            return  # the handshake was counted; the lease frees the blocks
        if self.leases.take(job.id) is not None:
            self.free(job)
