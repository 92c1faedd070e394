"""SGLang: both legs are sent at once with the same body, and meet in a room of the prefill engine's bootstrap server.

As its routers use it: ``bootstrap_host``, ``bootstrap_port`` and ``bootstrap_room`` are top-level fields. The prefill
engine computes nothing before the decode engine is there, samples one token, and answers when its KV has been taken. An
engine of either kind serves nothing else: a request without a room is refused. What the two say to each other is our
own: ``GET /room/<number>`` is answered with the KV.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from simulator.engine import Engine
from simulator.errors import ApiError
from simulator.job import Finish, Job
from simulator.settings import EngineSettings
from simulator.transfer.bootstrap import RETRY_SECONDS, Bootstrap, ask
from simulator.transfer.connector import Connector, Load, log
from simulator.transfer.content import pack, serves
from simulator.transfer.leases import Leases
from simulator.transfer.parameters import Leg, Transfer

FIELDS = ("bootstrap_host", "bootstrap_port", "bootstrap_room")


@dataclass(slots=True)
class Room:
    """Where two legs of the same number meet. ``entered``: the decode leg came. ``ready``: the prefill leg is done.
    ``left``: the decode leg has its KV.
    """

    entered: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    job: Job | None = None  # the prefill leg, once it is there


class Sglang(Connector):
    """``pairing_timeout`` is SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT and SGLANG_DISAGGREGATION_WAITING_TIMEOUT."""

    recomputes = False

    def __init__(self, settings: EngineSettings, engine: Engine, name: str, rank: int) -> None:
        super().__init__(settings, engine, name, rank)
        self.rooms: dict[str, Room] = {}
        self.leases = Leases(self._expire)
        self._under_way: dict[Job, asyncio.Task[None]] = {}
        self._bootstrap = Bootstrap({"/room/{number}": self._enter})

    @property
    def bootstrap(self) -> str | None:
        return self._bootstrap.address

    async def start(self, host: str) -> None:
        first = self.ranks[0]
        if isinstance(first, Sglang):
            # Ranks share one port, so they share the rooms behind it.
            self.rooms = first.rooms
        if self.rank == 0 and self.settings.kv_role == "producer":
            await self._bootstrap.open(host, self.settings.bootstrap_port)

    async def close(self) -> None:
        await super().close()
        self.leases.close()
        await self._bootstrap.close()

    def read(self, body: Mapping[str, Any]) -> Transfer | None:
        params = {name: body.get(name) for name in FIELDS}
        if params["bootstrap_room"] is None:
            raise ApiError(400, "Invalid request: Disaggregated request received without bootstrap room id.")
        return Transfer(Leg.PREFILL if self.settings.kv_role == "producer" else Leg.DECODE, params)

    def enter(self, job: Job) -> None:
        if job.transfer is None:
            return
        job.waits = True
        if job.transfer.leg is Leg.PREFILL:
            job.max_tokens = 1
            job.keeps = (Finish.LENGTH, Finish.STOP)
        else:
            job.remote_tokens = job.prompt_tokens

    def fetch(self, job: Job) -> None:
        transfer = job.transfer
        if transfer is None or transfer.fault == "hang":
            return
        if transfer.fault == "fail":
            self.loaded(job, Load.FAILED)
        elif transfer.leg is Leg.PREFILL:
            self._under_way[job] = self.spawn(self._await_reader(job), "room")
        else:
            self._under_way[job] = self.spawn(self._load(job, transfer.params), "kv-load")

    def ended(self, job: Job) -> None:
        if task := self._under_way.pop(job, None):
            # Whoever waits on the other side is not told, and waits on.
            task.cancel()
            self.loaded(job, Load.FAILED)
        if job in self.engine.kept:
            number = _number(job)
            room = self.rooms.setdefault(number, Room())
            room.job = job
            room.ready.set()
            self.leases.add(number, job, self.settings.pairing_timeout)

    async def deliver(self, job: Job) -> bool:
        if job not in self.engine.kept:
            return True
        number = _number(job)
        try:
            async with asyncio.timeout(self.settings.pairing_timeout):
                await self.rooms[number].left.wait()
        except TimeoutError:
            return False
        finally:
            self.leases.take(number)
            self._expire(job)
        return True

    def _expire(self, job: Job) -> None:
        """A prefill leg's room is closed, and its blocks are free, whether somebody took the KV or not."""
        self.rooms.pop(_number(job), None)
        self.free(job)

    def _finish(self, job: Job, load: Load) -> None:
        self._under_way.pop(job, None)
        self.loaded(job, load)

    async def _await_reader(self, job: Job) -> None:
        """The prefill leg: wait for the decode leg before anything is computed."""
        room = self.rooms.setdefault(_number(job), Room())
        try:
            async with asyncio.timeout(self.settings.pairing_timeout):
                await room.entered.wait()
        except TimeoutError:
            log.warning("nobody came into the room of %s", job.id)
            self.rooms.pop(_number(job), None)
            self._finish(job, Load.FAILED)
        else:
            self._finish(job, Load.ARRIVED)

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        """The decode leg came: answer it when the prefill leg is done."""
        room = self.rooms.setdefault(request.match_info["number"], Room())
        room.entered.set()
        await room.ready.wait()
        if room.job is None:
            raise web.HTTPGone
        await asyncio.sleep(self.settings.kv_transfer_seconds * room.job.prompt_tokens)
        answer = web.Response(body=pack(room.job))
        await answer.prepare(request)
        await answer.write_eof()
        room.left.set()
        return answer

    async def _load(self, job: Job, params: Mapping[str, Any]) -> None:
        """The decode leg: knock until somebody opens."""
        url = f"http://{params['bootstrap_host']}:{params['bootstrap_port']}/room/{params['bootstrap_room']}"
        content = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.pairing_timeout):
                while content is None:
                    content = await self._knock(url)
        if content is None:
            log.warning("the KV of %s does not come", job.id)
            self._finish(job, Load.FAILED)
        else:
            self._finish(job, Load.ARRIVED if serves(content, job, job.prompt_tokens) else Load.GARBLED)

    async def _knock(self, url: str) -> bytes | None:
        """The KV; None: there is no such server now, or it went away."""
        try:
            return await ask(url, self.settings.pairing_timeout, attempts=1)
        except (aiohttp.ClientError, ValueError):
            await asyncio.sleep(RETRY_SECONDS)
            return None


def _number(job: Job) -> str:
    """Of the room that a leg's client named."""
    return str(job.transfer.params["bootstrap_room"]) if job.transfer is not None else ""
