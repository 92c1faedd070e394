"""Simulated engines, a picker and Envoys in front of it: the first in the test's own loop, the others as processes.

async with lab(folder, epp={"fallbacks": 1}) as made:
    front = await made.envoy(Mode.FULL)
    answer = await front.post(chat())
"""

from __future__ import annotations

import contextlib
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gateway.commands.envoy.document import document
from gateway.commands.envoy.fields import Message, extension
from gateway.commands.envoy.wanted import Address, Mode, Wanted
from gateway.commands.processes import START_SECONDS, Process, Processes, free_port
from gateway.config.load import load
from simulator.server import EngineServer
from simulator.settings import EngineSettings
from tests.envoy.versions import NEWEST, binary
from tests.support.engines import simulated
from tests.support.ports import free_in_a_row
from tests.support.processes import KVGATE, terminated
from tests.support.wait import until

CHAT = "/v1/chat/completions"
SUBSET = "test-subset"
"""A client's header that becomes a subset hint, as a route of a gateway would give it."""

PATIENT = 60.0
"""Seconds for an answer, on a busy machine."""


@dataclass
class Front:
    """An Envoy that serves clients at ``url``."""

    url: str
    admin: str
    client: httpx.AsyncClient
    process: Process

    async def post(self, body: Any, path: str = CHAT, **headers: str) -> httpx.Response:
        """``body``: bytes as they are, or anything as JSON. Underscores of headers' names become hyphens."""
        named = {"content-type": "application/json"} | {name.replace("_", "-"): text for name, text in headers.items()}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.post(self.url + path, content=content, headers=named)

    async def stats(self, pattern: str) -> dict[str, int]:
        """Counters and gauges whose names match and that are not 0."""
        answer = await self.client.get(f"{self.admin}/stats", params={"filter": pattern, "format": "json"})
        return {one["name"]: one["value"] for one in answer.json()["stats"] if one.get("value")}

    async def picker_is(self, healthy: bool) -> None:
        """Wait until Envoy knows it."""

        async def known() -> bool:
            found = await self.stats(r"cluster\.picker\.membership_healthy")
            return bool(found) == healthy

        await until(known, f"the picker is {'healthy' if healthy else 'out'}")


@dataclass
class Lab:
    """``engines``: in the order of the configuration. ``settings``: of plugins.yaml."""

    folder: Path
    processes: Processes
    client: httpx.AsyncClient
    engines: list[EngineServer]
    settings: dict[str, Any]
    port: int = field(default_factory=free_port)
    admin: int = field(default_factory=free_port)
    picker: Process | None = None
    fronts: dict[Any, Front] = field(default_factory=dict)
    starts: int = 0

    @property
    def config(self) -> Path:
        return self.folder / "plugins.yaml"

    @property
    def addresses(self) -> list[str]:
        return [engine.url.partition("://")[2] for engine in self.engines]

    def write(self) -> None:
        self.config.write_text(json.dumps(self.settings, indent=1))

    async def start_picker(self) -> None:
        """Start it, and wait until all of its engines are usable."""
        self.starts += 1
        self.picker = self.processes.start(f"picker-{self.starts}", [*KVGATE, "epp", str(self.config)])
        await until(self._ready, "the picker is ready", within=START_SECONDS)

    async def _ready(self) -> bool:
        assert self.picker is not None
        assert self.picker.running, self.picker.tail()
        with contextlib.suppress(httpx.TransportError, OSError):
            page = await self.metrics()
            return len(re.findall(r"^kvgate_engine_up{.*} 1", page, re.MULTILINE)) == len(self.engines)
        return False

    async def kill_picker(self) -> None:
        assert self.picker is not None
        self.picker.kill()

    async def stop_picker(self) -> int:
        """Its exit status after SIGTERM."""
        assert self.picker is not None
        return await terminated(self.picker)

    async def envoy(
        self,
        mode: Mode = Mode.ENDS,
        *,
        version: str = NEWEST,
        fail_open: bool = True,
        picker_tls: bool = False,
        picker_ca: str | None = None,
        change: Callable[[Message], None] | None = None,
        expect: bool | None = True,
    ) -> Front:
        """One that is configured as ``kvgate envoy`` does, and hears of subsets. The same again for the same arguments.

        ``change``: edits its configuration. ``expect``: wait until it finds the picker healthy (True), or out (False).
        """
        key = (mode, version, fail_open, picker_tls, picker_ca, change)
        if key in self.fronts:
            return self.fronts[key]
        here = [Address("127.0.0.1", free_port()) for _ in range(2)]
        picker = {"pickers": (Address("127.0.0.1", self.port),), "picker_tls": picker_tls, "picker_ca": picker_ca}
        wanted = Wanted(*here, **picker, mode=mode, fail_open=fail_open)
        made = document(load(self.config, {}), wanted)
        hear_subsets(made)
        if change is not None:
            change(made)
        name = f"envoy-{len(self.fronts)}-{mode}"
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps(made, indent=1))
        command = [binary(version), "-c", file, "--concurrency", "1", "--disable-hot-restart", "-l", "warning"]
        process = self.processes.start(name, command)
        url, admin = (f"http://{one}" for one in here)
        front = self.fronts[key] = Front(url, admin, self.client, process)

        async def ready() -> bool:
            assert process.running, process.tail()
            with contextlib.suppress(httpx.TransportError):
                return (await self.client.get(f"{admin}/ready")).status_code == 200
            return False

        await until(ready, "Envoy is ready", within=START_SECONDS)
        if expect is not None:
            await front.picker_is(expect)
        return front

    async def metrics(self) -> str:
        return (await self.client.get(f"http://127.0.0.1:{self.admin}/metrics")).text

    async def total(self, pattern: str) -> float:
        """The sum of the picker's series that begin so; a regular expression."""
        lines = re.findall(rf"^{pattern}.* ([-+.\de]+)$", await self.metrics(), re.MULTILINE)
        return sum(float(value) for value in lines)

    async def decisions(self) -> list[dict[str, Any]]:
        """The picker's last ones, the newest first."""
        answer = await self.client.get(f"http://127.0.0.1:{self.admin}/debug/decisions", params={"limit": 1000})
        found: list[dict[str, Any]] = answer.json()["decisions"]
        return found

    async def nothing_is_booked(self) -> None:
        async def idle() -> bool:
            return await self.total("kvgate_in_flight_requests") == 0

        await until(idle, "all is given back")

    def served(self) -> list[int]:
        """For each engine, how many chats it got so far."""
        return [sum(one.path == CHAT for one in engine.received) for engine in self.engines]


def hear_subsets(made: Message) -> None:
    """A client's header names the candidates."""
    rule = {"metadata_namespace": "envoy.lb.subset_hint", "key": "x-gateway-destination-endpoint-subset"}
    named = extension(
        "envoy.filters.http.header_to_metadata",
        "envoy.extensions.filters.http.header_to_metadata.v3.Config",
        request_rules=[{"header": SUBSET, "remove": True, "on_header_present": rule | {"type": "STRING"}}],
    )
    manager(made)["http_filters"].insert(0, named)


def manager(made: Message) -> Message:
    """The part of Envoy's configuration that is about HTTP."""
    [listener] = made["static_resources"]["listeners"]
    found: Message = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return found


@contextlib.asynccontextmanager
async def lab(
    folder: Path,
    *,
    engines: int = 2,
    at: Sequence[tuple[str, int]] = (),
    simulator: Mapping[str, Any] | None = None,
    epp: Mapping[str, Any] | None = None,
    tls: Sequence[ssl.SSLContext | None] = (),
    picker: bool = True,
    **settings: Any,
) -> AsyncIterator[Lab]:
    """``at``: hosts and ports of the engines, else ``engines`` of them on free ports. ``simulator``: of EngineSettings.
    ``epp``: its section. ``tls``: of each engine; none: plain HTTP. ``settings``: more keys of plugins.yaml.
    ``picker``: whether it is started."""
    async with contextlib.AsyncExitStack() as stack:
        processes = stack.enter_context(Processes(folder))
        places = list(at) or [("127.0.0.1", free_in_a_row()) for _ in range(engines)]
        running = []
        for seed, (host, port) in enumerate(places):
            where = {"host": host, "port": port, "tls": tls[seed] if tls else None}
            settings_of = EngineSettings(seed=seed, **(simulator or {}))
            running.append(await stack.enter_async_context(simulated(settings_of, where=where)))
        client = await stack.enter_async_context(
            httpx.AsyncClient(timeout=PATIENT, verify=False, limits=httpx.Limits(max_connections=None))
        )
        made = Lab(folder, processes, client, running, {})
        made.settings = {
            "listen": {"admin": f"127.0.0.1:{made.admin}", "lame_duck": 0},
            "epp": {"listen": f"127.0.0.1:{made.port}", "health": "", **(epp or {})},
            "models": [{"name": "sim", "endpoints": [{"url": engine.url} for engine in running]}],
            "fleet": {"scrape": {"interval": 0.2, "timeout": 20}, "health": {"failures": 10, "slow_start": 0}},
            "log": {"format": "json"},
        } | settings
        made.write()
        if picker:
            await made.start_picker()
        yield made
