"""NIXL, as far as pull and push are the same: what the prefill engine tells and keeps, handshakes, heartbeats.

vLLM 0.32's connectors (distributed/kv_transfer/kv_connector/v1/nixl), as a client and a remote engine see them: the
answer's fields, one handshake for each remote engine id, leases, and what goes wrong.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Mapping
from typing import Any

import zmq.asyncio

from simulator.engine import Engine
from simulator.errors import EngineDead
from simulator.job import Finish, Job
from simulator.settings import EngineSettings
from simulator.transfer.connector import Connector, Load, log
from simulator.transfer.content import BYTES_PER_TOKEN
from simulator.transfer.leases import Leases
from simulator.transfer.parameters import Leg, Transfer, read_params
from simulator.transfer.side_channel import Agent, Payload, Remote, RemoteLost, SideChannel, encode

CONNECTOR_VERSION = 14
"""NIXL_CONNECTOR_VERSION of 0.32."""

ADDRESS_FIELDS = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")
"""Where one of them is absent a load is never started, and never given up."""

HEARTBEATS_PER_LEASE = 6
EXTENSION = 2 / 3
"""A heartbeat lets a lease end no sooner than in this part of it."""

DESCRIPTORS_PER_RUN = 2
"""One for each of the captured engine's layers and each run of adjacent blocks."""


class Nixl(Connector):
    """The prefill side, the handshakes and the heartbeats. ``mode``: the answer's ``transfer_mode``."""

    mode = ""

    def __init__(self, settings: EngineSettings, engine: Engine, name: str, rank: int) -> None:
        super().__init__(settings, engine, name, rank)
        self.port = 0
        self.leases = Leases(self._expire)
        self._stats = engine.stats.transfers
        self._context: zmq.asyncio.Context | None = None
        model = settings.tokenizer or settings.served_name
        factors = f"{settings.version}/{CONNECTOR_VERSION}/{model}/{self.mode}"
        self._compatibility = hashlib.sha256(factors.encode()).hexdigest()
        agent = encode(Agent(name, settings.block_size))
        self._channel = SideChannel(Payload(self._compatibility, agent), self._receive)
        self._remotes: dict[str, Remote] = {}
        self._handshakes: dict[str, asyncio.Future[Remote]] = {}
        self._expecting: dict[Job, None] = {}
        self._beating = False

    async def start(self, host: str) -> None:
        self._context = zmq.asyncio.Context()
        port = self.settings.side_channel_port
        try:
            self.port = self._channel.bind(self._context, host, port + self.rank if port else 0)
        except zmq.ZMQError:
            self._context.term()
            self._context = None
            raise
        self.spawn(self._channel.serve(), "side-channel")

    async def close(self) -> None:
        await super().close()
        self.leases.close()
        self._channel.close()
        for remote in self._remotes.values():
            remote.close()
        self._remotes.clear()
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def read(self, body: Mapping[str, Any]) -> Transfer | None:
        params = read_params(body)
        if params is None:
            return None
        if params.get("do_remote_prefill"):
            self._check(params)
            cached = params.get("remote_prefill_cached_tokens")
            return Transfer(Leg.DECODE, params, cached if isinstance(cached, int) else None)
        return Transfer(Leg.PREFILL, params) if params.get("do_remote_decode") else None

    def enter(self, job: Job) -> None:
        if job.transfer is None:
            return
        if job.transfer.leg is Leg.PREFILL:
            job.keeps = (Finish.LENGTH, Finish.STOP)
            return
        job.remote_tokens, job.waits = job.prompt_tokens, True
        params = job.transfer.params
        if all(params.get(name) is not None for name in (*ADDRESS_FIELDS, "tp_size")):
            self._expecting[job] = None
            if not self._beating:
                self._beating = True
                self.spawn(self._beat(), "heartbeats")

    def fetch(self, job: Job) -> None:
        transfer = job.transfer
        if transfer is None or transfer.fault == "hang":
            return
        if transfer.fault == "fail":
            self._stats.failed += 1
            self._finish(job, Load.FAILED)
        elif all(name in transfer.params for name in ADDRESS_FIELDS):
            self.spawn(self._load(job, transfer.params), "kv-load")
        else:
            log.warning("invalid kv_transfer_params of %s: its KV never comes", job.id)

    def ended(self, job: Job) -> None:
        transfer = job.transfer
        if transfer is None:
            return
        if job in self.engine.kept:
            self.leases.add(job.id, job, self.settings.kv_lease_seconds)
            self._keep(job)
        self._expecting.pop(job, None)
        if job.waits:
            # It has no blocks yet, and so nothing was begun for it.
            try:
                self.reject(transfer)
            except EngineDead as error:
                self.died(str(error))

    def answer(self, job: Job) -> dict[str, Any] | None:
        if job.transfer is None or job.transfer.leg is not Leg.PREFILL or job.finish not in job.keeps:
            return None
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [job.blocks],
            "remote_engine_id": self.name,
            "remote_request_id": job.id,
            "remote_host": self.settings.side_channel_host,
            "remote_port": self.port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": job.computed,
            **self._tail(),
            "remote_prefill_cached_tokens": job.cached or 0,
        }

    def _check(self, params: Mapping[str, Any]) -> None:
        """Raises EngineDead for parameters of a decode leg that the scheduler fails on."""

    def _tail(self) -> dict[str, Any]:
        return {"transfer_mode": self.mode}

    def _keep(self, job: Job) -> None:
        """A prefill leg's blocks wait for their reader from now on."""

    async def _load(self, job: Job, params: Mapping[str, Any]) -> None:
        """Get a job's KV, and say what became of it."""

    def _finish(self, job: Job, load: Load) -> None:
        self._expecting.pop(job, None)
        self.loaded(job, load)

    def _count(self, job: Job, began: float) -> None:
        """Count a load that took from ``began``, a time of the loop, until now."""
        fetched = job.blocks[job.named :]
        runs = 1 + sum(1 for one, two in itertools.pairwise(fetched) if two != one + 1)
        seconds = asyncio.get_running_loop().time() - began
        self._stats.seconds.observe(seconds)
        self._stats.post_seconds.observe(seconds)
        self._stats.bytes.observe(len(fetched) * self.settings.block_size * BYTES_PER_TOKEN)
        self._stats.descriptors.observe(runs * DESCRIPTORS_PER_RUN)

    def _receive(self, kind: str, arguments: list[Any]) -> list[Any] | None:
        """A remote engine's message; the first argument is the engine id that it means."""
        if arguments[0] != self.name:
            return None
        if kind == "heartbeat":
            self.leases.extend(arguments[1], self.settings.kv_lease_seconds * EXTENSION)
            return []
        return self._obey(kind, arguments[1:])

    def _obey(self, kind: str, arguments: list[Any]) -> list[Any] | None:
        return None

    def _release(self, name: str) -> Job | None:
        """A remote engine is done with a request's blocks; None: they were given up before."""
        job = self.leases.take(name)
        if job is None:
            self._stats.notifications_after_expiry += 1
            return None
        self.free(job)
        return job

    def _expire(self, job: Job) -> None:
        self._stats.expired += 1
        self.free(job)
        log.warning("the blocks of %s were not fetched in time", job.id)

    async def _meet(self, engine_id: Any, host: Any, port: Any) -> Remote:
        """The connection to a remote engine: its handshake is made once. Raises RemoteLost.

        Who asks while it is under way waits for the same one.
        """
        known = self._remotes.get(engine_id)
        if known is not None:
            return known
        pending = self._handshakes.get(engine_id)
        if pending is None:
            pending = self._handshakes[engine_id] = asyncio.get_running_loop().create_future()
            self.spawn(self._shake(str(engine_id), host, port, pending), "handshake")
        # Not cancelled with one of those who wait for it.
        return await asyncio.shield(pending)

    async def _shake(self, engine_id: str, host: Any, port: Any, pending: asyncio.Future[Remote]) -> None:
        remote = None
        try:
            if self._context is None:
                raise RemoteLost("closed")
            remote = Remote(self._context, host, port, self.settings.handshake_timeout)
            await remote.meet(engine_id, self._compatibility)
        except RemoteLost as error:
            log.warning("%s", error)
            self._stats.failed += 1
            pending.set_exception(error)
            pending.exception()  # heartbeats do not wait for it: it is no loss if nobody does
            if remote is not None:
                remote.close()
        except BaseException:
            if remote is not None:
                remote.close()
            raise
        else:
            self._remotes[engine_id] = remote
            pending.set_result(remote)
        finally:
            del self._handshakes[engine_id]

    async def _beat(self) -> None:
        """Keep the leases of what is waited for, until nothing is."""
        while self._expecting:
            names: dict[str, list[str]] = {}
            for job in self._expecting:
                params = job.transfer.params if job.transfer is not None else {}
                engine_id = str(params["remote_engine_id"])
                names.setdefault(engine_id, []).append(str(params["remote_request_id"]))
                if engine_id not in self._remotes and engine_id not in self._handshakes:
                    meeting = self._meet(engine_id, params["remote_host"], params["remote_port"])
                    self.spawn(_ignore_loss(meeting), "heartbeat-handshake")
            for engine_id, requests in names.items():
                # One whose handshake is under way gets the next one.
                if remote := self._remotes.get(engine_id):
                    await remote.tell("heartbeat", requests)
            await asyncio.sleep(self.settings.kv_lease_seconds / HEARTBEATS_PER_LEASE)
        self._beating = False


async def _ignore_loss(meeting: Any) -> None:
    try:
        await meeting
    except RemoteLost:
        return
