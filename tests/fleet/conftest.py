"""A clock that stands still, engines whose answers a test decides, and what a fleet reports."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gateway.core.clock import ManualClock, SystemClock
from gateway.core.observer import Observer
from gateway.fleet.fleet import Fleet
from gateway.fleet.kv_source import KvSource
from gateway.fleet.settings import EndpointSettings, FleetSettings, HealthSettings, ScrapeSettings
from gateway.framework import Endpoint
from gateway.framework.fleet import Model
from tests.support.scripted_engine import Get, ScriptedEngine
from tests.support.wire import Connection, answer

DATA = Path(__file__).parent.parent / "data" / "fleet"


def tiny(**options: Any) -> ScriptedEngine:
    """An engine that serves the model ``tiny``, and whose metrics say all that the fleet reads."""
    usual = {"model": "tiny", "models": [{"id": "tiny", "parent": None}], "kv_sources": None}
    measured = {"started": 1.0, "capacity": "1000", "queries": 0.0, "awake": True}
    return ScriptedEngine(**{**usual, **measured, **options})


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
        started.append(await tiny(**options).start())
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
