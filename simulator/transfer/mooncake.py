"""Mooncake: a gateway names a transfer and sends both legs; the prefill engine writes into the decode engine's blocks.

vLLM 0.32's MooncakeConnector (distributed/kv_transfer/kv_connector/v1/mooncake), as a gateway and the other engine see
it: the producer's bootstrap server (``GET /query``), its answer without parameters, and that either leg may come first
and waits for the other. The messages between the engines have the real ones' names; what is written into memory there
goes with the answer here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec
import zmq
import zmq.asyncio
from aiohttp import web

from simulator.engine import Engine
from simulator.errors import EngineDead
from simulator.job import Finish, Job
from simulator.settings import EngineSettings
from simulator.transfer.bootstrap import Bootstrap, ask
from simulator.transfer.connector import Connector, Load, log
from simulator.transfer.content import pack, serves
from simulator.transfer.leases import Leases
from simulator.transfer.parameters import Leg, Transfer, read_params

ADDRESS_FIELDS = ("transfer_id", "remote_engine_id", "remote_bootstrap_addr")
"""Where one of them is absent a load is never started, and never given up."""

PATIENCE = 1.125
"""The decode engine waits that much longer than the prefill engine does: 540 s to its 480."""

FINISHED = 0
"""MooncakeXferResponseStatus.FINISH."""

encode = msgspec.msgpack.encode
decode = msgspec.msgpack.decode


class LoadFailed(Exception):
    """The KV cannot be had; the message says why."""


class Mooncake(Connector):
    """``pairing_timeout`` is VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT, ``handshake_timeout`` that of the bootstrap query."""

    def __init__(self, settings: EngineSettings, engine: Engine, name: str, rank: int) -> None:
        super().__init__(settings, engine, name, rank)
        self.address = ""
        self.leases = Leases(self._expire)
        self._ready: dict[str, asyncio.Event] = {}
        self._workers: dict[str, str] = {}
        self._context: zmq.asyncio.Context | None = None
        self._listener: zmq.asyncio.Socket | None = None
        self._bootstrap = Bootstrap({"/query": self._query})

    @property
    def bootstrap(self) -> str | None:
        return self._bootstrap.address

    async def start(self, host: str) -> None:
        self._context = zmq.asyncio.Context()
        if self.settings.kv_role == "consumer":
            return
        self._listener = self._context.socket(zmq.ROUTER)
        self._listener.bind(f"tcp://{host}:*")
        self.address = str(self._listener.getsockopt_string(zmq.LAST_ENDPOINT))
        self.spawn(self._listen(self._listener), "mooncake-sender")
        if self.rank == 0:
            await self._bootstrap.open(host, self.settings.bootstrap_port)

    async def close(self) -> None:
        await super().close()
        await self._bootstrap.close()
        self.leases.close()
        if self._listener is not None:
            self._listener.close(linger=0)
            self._listener = None
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def read(self, body: Mapping[str, Any]) -> Transfer | None:
        params = read_params(body)
        if params is None:
            return None
        # vLLM asserts the roles where it schedules the request.
        if params.get("do_remote_prefill"):
            if self.settings.kv_role == "producer":
                raise EngineDead("do_remote_prefill at a producer")
            return Transfer(Leg.DECODE, params)
        if params.get("do_remote_decode"):
            if self.settings.kv_role == "consumer":
                raise EngineDead("do_remote_decode at a consumer")
            return Transfer(Leg.PREFILL, params)
        return None

    def enter(self, job: Job) -> None:
        if job.transfer is None:
            return
        if job.transfer.leg is Leg.DECODE:
            job.remote_tokens, job.waits = job.prompt_tokens, True
        elif job.transfer.params.get("transfer_id"):
            # Not where it stops by itself: then it is not sent, and nobody tells the other leg.
            job.keeps = (Finish.LENGTH,)
        else:
            log.warning("no transfer_id in the kv_transfer_params of %s", job.id)

    def fetch(self, job: Job) -> None:
        transfer = job.transfer
        if transfer is None or transfer.fault == "hang":
            return
        if transfer.fault == "fail":
            self.loaded(job, Load.FAILED)
        elif all(name in transfer.params for name in ADDRESS_FIELDS):
            self.spawn(self._load(job, transfer.params), "kv-load")
        else:
            log.warning("invalid kv_transfer_params of %s: its KV never comes", job.id)

    def ended(self, job: Job) -> None:
        transfer = job.transfer
        if transfer is None:
            return
        if job in self.engine.kept:
            name = str(transfer.params["transfer_id"])
            self.leases.add(name, job, self.settings.pairing_timeout)
            self._event(name).set()
        if job.waits:
            try:
                self.reject(transfer)
            except EngineDead as error:
                self.died(str(error))

    def reject(self, transfer: Transfer) -> None:
        if transfer.leg is not Leg.DECODE or not transfer.params.get("transfer_id"):
            return
        if absent := [name for name in ADDRESS_FIELDS if name not in transfer.params]:
            raise EngineDead(f"do_remote_prefill without {', '.join(absent)}")
        self.spawn(self._release(transfer.params), "kv-release")

    async def _query(self, request: web.Request) -> web.StreamResponse:
        """Every rank's engine id and its workers' addresses, by tensor and pipeline rank."""
        ranks = {
            str(other.rank): {"engine_id": other.name, "worker_addr": {"0": {"0": other.address}}}
            for other in self.ranks
            if isinstance(other, Mooncake)
        }
        return web.json_response(ranks)

    async def _listen(self, listener: zmq.asyncio.Socket) -> None:
        while True:
            identity, message = await listener.recv_multipart()
            self.spawn(self._send(listener, identity, message), "mooncake-send")

    async def _send(self, listener: zmq.asyncio.Socket, identity: bytes, message: bytes) -> None:
        """Answer a decode engine when its transfer is ready, or when it has waited long enough."""
        [(request, (transfer_id, blocks))] = decode(message)["req_blocks"].items()
        answer: dict[str, Any] = {"status": FINISHED, "ok_reqs": [request]}
        try:
            async with asyncio.timeout(self.settings.pairing_timeout):
                await self._event(transfer_id).wait()
        except TimeoutError:
            answer = {"status": FINISHED, "err_reqs": [request], "err_msg": "Timeout waiting for P side ready."}
        job = self.leases.take(transfer_id)
        self._ready.pop(transfer_id, None)
        if job is not None:
            if blocks:
                await asyncio.sleep(self.settings.kv_transfer_seconds * job.prompt_tokens)
                answer["content"] = pack(job)
            self.free(job)
        await listener.send_multipart([identity, encode(answer)])

    async def _load(self, job: Job, params: Mapping[str, Any]) -> None:
        try:
            content = await self._pull(job.id, params, job.blocks[job.named :])
        except LoadFailed as error:
            log.warning("the KV of %s does not come: %s", job.id, error)
            self.loaded(job, Load.FAILED)
            return
        self.loaded(job, Load.ARRIVED if serves(content, job, job.prompt_tokens) else Load.GARBLED)

    async def _release(self, params: Mapping[str, Any]) -> None:
        """Ask for no blocks at all, so that the prefill engine frees its own."""
        try:
            await self._pull("", params, [])
        except LoadFailed as error:
            log.warning("blocks that nobody wants cannot be freed: %s", error)

    async def _pull(self, request: str, params: Mapping[str, Any], blocks: list[int]) -> bytes:
        """What the prefill engine sends for a transfer. Raises LoadFailed."""
        address = await self._worker(str(params["remote_engine_id"]), str(params["remote_bootstrap_addr"]))
        if self._context is None:
            raise LoadFailed("closed")
        dealer = self._context.socket(zmq.DEALER)
        try:
            dealer.connect(address)
            message = {
                "remote_hostname": "127.0.0.1",
                "remote_port": 0,
                "remote_tp_size": 1,
                "remote_tp_rank": 0,
                "req_blocks": {request: (str(params["transfer_id"]), [blocks] if blocks else [])},
            }
            await dealer.send(encode(message))
            async with asyncio.timeout(self.settings.pairing_timeout * PATIENCE):
                answer = decode(await dealer.recv())
        except (TimeoutError, zmq.ZMQError, msgspec.DecodeError) as error:
            raise LoadFailed(f"{address}: {error!r}") from error
        finally:
            dealer.close(linger=0)
        if answer.get("err_reqs"):
            raise LoadFailed(str(answer.get("err_msg")))
        return bytes(answer.get("content", b""))

    async def _worker(self, engine_id: str, bootstrap: str) -> str:
        """The address of a prefill engine's worker, asked of its bootstrap server once. Raises LoadFailed."""
        if engine_id not in self._workers:
            try:
                ranks = msgspec.json.decode(await ask(f"{bootstrap}/query", self.settings.handshake_timeout))
                for rank in ranks.values():
                    self._workers[rank["engine_id"]] = rank["worker_addr"]["0"]["0"]
            except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise LoadFailed(f"bootstrap server {bootstrap}: {error!r}") from error
        if engine_id not in self._workers:
            raise LoadFailed(f"engine id {engine_id} is not known to {bootstrap}")
        return self._workers[engine_id]

    def _event(self, transfer_id: str) -> asyncio.Event:
        """Set when the prefill leg is done; made by whichever leg comes first."""
        return self._ready.setdefault(transfer_id, asyncio.Event())

    def _expire(self, job: Job) -> None:
        if job.transfer is not None:
            self._ready.pop(str(job.transfer.params["transfer_id"]), None)
        self.free(job)
        log.warning("the blocks of %s were not fetched in time", job.id)
