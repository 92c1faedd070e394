"""A clock that stands still, and engines: the scripted one, with answers that a test decides."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from gateway.core.clock import ManualClock, SystemClock
from gateway.core.observer import Observer
from gateway.fleet.fleet import Fleet
from gateway.fleet.kv_source import KvSource
from gateway.fleet.settings import EndpointSettings, FleetSettings, HealthSettings, ScrapeSettings
from gateway.framework import Endpoint
from gateway.framework.fleet import Model
from tests.support.wire import Connection, Get, answer, engine, header_in, path_in

DATA = Path(__file__).parent.parent / "data" / "fleet"


@dataclass
class ScriptedEngine:
    """What an engine says on the routes which the fleet asks. ``faults``: path -> what to do instead."""

    ranks: int = 1
    first_rank: int = 0
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    capacity: str = "1000"
    block_size: int = 16
    queries: float = 0.0
    started: float = 1.0
    expired: float | None = None
    fetching: dict[str, int] = field(default_factory=dict)
    awake: bool = True
    key: str | None = None
    models: list[dict[str, Any]] = field(default_factory=lambda: [{"id": "tiny", "parent": None}])
    kv_sources: dict[str, Any] | None = None
    faults: dict[str, Get] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    port: int = 0
    tls: ssl.SSLContext | None = None
    path: str | None = None
    _serving: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    @property
    def url(self) -> str:
        if self.path is not None:
            return f"unix://{self.path}"
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"

    def count(self, path: str) -> int:
        return self.asked.count(path)

    async def start(self) -> ScriptedEngine:
        serving = engine(self._nowhere, self.port, get=self._answer, tls=self.tls, path=self.path)
        self.port = (await self._serving.enter_async_context(serving)).port
        return self

    async def stop(self) -> None:
        await self._serving.aclose()

    def metrics(self) -> str:
        lines = [f"process_start_time_seconds {self.started}"]
        for rank in range(self.first_rank, self.first_rank + self.ranks):
            labels = f'engine="{rank}",model_name="tiny"'
            lines += [
                f"vllm:num_requests_running{{{labels}}} {self.running + rank - self.first_rank}.0",
                f"vllm:num_requests_waiting{{{labels}}} {self.waiting}.0",
                f"vllm:kv_cache_usage_perc{{{labels}}} {self.kv_usage}",
                f"vllm:prefix_cache_queries_total{{{labels}}} {self.queries}",
                f"vllm:prefix_cache_hits_total{{{labels}}} 0.0",
                f'vllm:engine_sleep_state{{{labels},sleep_state="awake"}} {float(self.awake)}',
                f'vllm:cache_config_info{{block_size="{self.block_size}",engine="{rank}",'
                f'kv_cache_size_tokens="{self.capacity}",num_gpu_blocks="10"}} 1.0',
            ]
            if self.expired is not None:
                lines.append(f"vllm:nixl_num_kv_expired_reqs_total{{{labels}}} {self.expired + rank - self.first_rank}")
            lines += [
                f'vllm:num_requests_kv_fetch_by_stage{{{labels},stage="{stage}"}} {count}.0'
                for stage, count in self.fetching.items()
            ]
        # The format wants all samples of one name together.
        return "\n".join(sorted(lines)) + "\n"

    async def _nowhere(self, connection: Connection, head: bytes, body: bytes) -> None:
        """No client's request comes here."""
        await connection.say(answer(b"{}", status="404 Not Found"))

    async def _answer(self, connection: Connection, head: bytes) -> None:
        path = path_in(head)
        self.asked.append(path)
        self.keys.append(header_in(head, b"authorization"))
        if fault := self.faults.get(path):
            await fault(connection, head)
        elif path.startswith("/v1/") and self.key and self.keys[-1] != f"Bearer {self.key}":
            await connection.say(answer(b'{"error": "Unauthorized"}', status="401 Unauthorized"))
        elif path == "/metrics":
            await connection.say(answer(self.metrics().encode(), content_type="text/plain"))
        elif path == "/health":
            await connection.say(answer(b""))
        elif path == "/version":
            await connection.say(answer(b'{"version": "0.32.0"}'))
        elif path == "/v1/models":
            await connection.say(answer(orjson.dumps({"object": "list", "data": self.models})))
        elif path == "/kv_event_sources" and self.kv_sources is not None:
            await connection.say(answer(orjson.dumps(self.kv_sources)))
        else:
            await connection.say(answer(b'{"detail": "Not Found"}', status="404 Not Found"))


def says(*bodies: bytes | str, status: int = 200, **headers: str) -> Get:
    """These answers in turn, the last of them again and again."""
    left = [body.encode() if isinstance(body, str) else body for body in bodies]
    extra = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()

    async def respond(connection: Connection, head: bytes) -> None:
        body = left.pop(0) if len(left) > 1 else left[0]
        await connection.say(answer(body, status=f"{status} Said", extra=extra))

    return respond


async def hangs(connection: Connection, head: bytes) -> None:
    await connection.gone()


def is_watched(engine: str) -> bool:
    """Whether a task looks at the engine of this name."""
    return any(task.get_name() == f"watch {engine}" for task in asyncio.all_tasks())


@pytest.fixture(scope="session")
def manual_clock() -> type[ManualClock]:
    return ManualClock


@pytest.fixture(scope="session")
def data() -> Path:
    return DATA


@pytest.fixture
async def engines():
    """``await engines(...)`` starts one; all are stopped at the end."""
    started: list[ScriptedEngine] = []

    async def start(**options: Any) -> ScriptedEngine:
        started.append(await ScriptedEngine(**options).start())
        return started[-1]

    yield start
    for one in started:
        await one.stop()


class Seen(Observer):
    """What the fleet counted and told, in order."""

    def __init__(self) -> None:
        self.states: list[tuple[str, bool, str]] = []
        self.scrapes: list[tuple[str, bool]] = []
        self.transfers: dict[str, tuple[float, Mapping[str, int]]] = {}
        self.lookups: Counter[tuple[str, str]] = Counter()
        self.told: list[tuple[Any, ...]] = []
        self.gone: list[str] = []
        self.peek: Callable[[], Any] = lambda: None
        self.peeked: list[Any] = []

    # as an observer

    def engine_state(self, engine: str, up: bool, reason: str) -> None:
        """Also keeps what ``peek`` sees at this very moment."""
        self.states.append((engine, up, reason))
        self.peeked.append(self.peek())

    def scraped(self, engine: str, ok: bool, at: float) -> None:
        self.scrapes.append((engine, ok))

    def kv_transfers(self, endpoint: str, expired: float, fetching: Mapping[str, int]) -> None:
        self.transfers[endpoint] = expired, fetching

    def cache_lookups(self, endpoint: str, cache: str, queried: float, hit: float) -> None:
        self.lookups[endpoint, cache] += int(queried)

    # as a listener, but for one name that both have

    def endpoint_dropped(self, endpoint: Any) -> None:
        if isinstance(endpoint, str):
            self.gone.append(endpoint)
        else:
            self.told.append(("dropped", endpoint.name))

    def engine_dropped(self, engine: str) -> None:
        self.gone.append(engine)

    def endpoint_added(self, endpoint: Endpoint) -> None:
        self.told.append(("added", endpoint.name))

    def engine_restarted(self, endpoint: Endpoint) -> None:
        self.told.append(("restarted", endpoint.name))

    def engine_asleep(self, endpoint: Endpoint) -> None:
        self.told.append(("asleep", endpoint.name))

    def kv_source(self, endpoint: Endpoint, source: KvSource | None) -> None:
        self.told.append(("source", endpoint.name, source))


QUICK = FleetSettings(
    # So that a test waits for hundredths of a second; the timeout is long, for a machine that is busy with other tests.
    scrape=ScrapeSettings(interval=0.02, timeout=10.0),
    health=HealthSettings(failures=2, backoff=0.004, slow_start=0.2),
)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
async def fleets(seen):
    """``await fleets((model, [EndpointSettings, ...]), ...)`` starts a fleet that ``seen`` listens to."""
    started: list[Fleet] = []

    async def start(*models: Any, settings: FleetSettings = QUICK, listen: bool = True) -> Fleet:
        fleet = Fleet(models, settings, SystemClock(), seen, Random(1))
        started.append(fleet)
        if listen:
            fleet.listen(seen)
        await fleet.start()
        return fleet

    yield start
    before = asyncio.all_tasks()
    for fleet in started:
        await fleet.close()
        await fleet.close()
    left = [task.get_name() for task in asyncio.all_tasks() & before if task.get_name().startswith("watch ")]
    assert not left


@pytest.fixture
def model() -> Model:
    return Model("tiny")


@pytest.fixture
def served(engines, fleets, model):
    """``await served({...}, ranks=2, ...)``: an engine, and a fleet of it alone. The first: its endpoint's settings."""

    async def start(endpoint: dict[str, Any] | None = None, **options: Any) -> tuple[ScriptedEngine, Fleet]:
        engine = await engines(**options)
        return engine, await fleets((model, [EndpointSettings(url=engine.url, **(endpoint or {}))]))

    return start
