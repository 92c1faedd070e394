"""A whole gateway in the test's own loop, on real sockets, in front of simulated engines."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from gateway.app import Gateway
from gateway.config.settings import Config, ModelSettings
from gateway.core.observer import Observer, Settled
from gateway.fleet.settings import EndpointSettings, FleetSettings, HealthSettings, ScrapeSettings
from gateway.observability.settings import LogSettings
from gateway.proxy.settings import TimeoutSettings
from gateway.restart.listener import Listener
from gateway.scheduling.settings import HandlerSettings, PluginSettings, ProfileSettings
from gateway.sharing.seat import Seat
from simulator.server import EngineServer
from tests.support.wait import eventually

QUICK_FLEET = FleetSettings(
    # One late scrape takes an engine out: no machine that is only busy is as late as that.
    scrape=ScrapeSettings(interval=0.05, timeout=5.0),
    health=HealthSettings(failures=1, backoff=0.01, slow_start=0.0),
)
"""Notices within a test's patience what takes seconds in production."""

PATIENT_FLEET = replace(
    QUICK_FLEET,
    scrape=ScrapeSettings(interval=0.1, timeout=20.0),
    health=replace(QUICK_FLEET.health, failures=10),
)
"""A dead engine refuses connections, which takes it out at once; one that only answers late on a busy machine stays."""

PATIENT = TimeoutSettings(connect=30, head=60, idle=60, total=300, prefill=60, handover=60)
"""However busy the machine is, an engine that answers does so in time. Who tries a limit makes that one short."""

SOON = 0.3
"""Seconds of a limit that is reached."""

IN_TURN: dict[str, Any] = {
    "plugins": (PluginSettings("healthy", "healthy"), PluginSettings("turn", "round-robin")),
    "profiles": (ProfileSettings(name="default", filters=("healthy",), picker="turn"),),
}
"""A wiring that asks every usable endpoint in turn, for tests that must know which comes next."""


@dataclass
class Running:
    """A gateway that listens at ``url``, its metrics at ``admin_url``. ``wanted``: what a reload reads; raised if it is
    an error."""

    gateway: Gateway
    url: str
    admin_url: str
    client: httpx.AsyncClient
    lines: list[Settled] = field(default_factory=list)
    wanted: Config | Exception | None = None

    async def reload(self, wanted: Config | Exception | None = None) -> httpx.Response:
        self.wanted = wanted or self.wanted
        return await self.client.post(f"{self.admin_url}/reload")

    def read(self) -> Config:
        if isinstance(self.wanted, Exception):
            raise self.wanted
        assert self.wanted is not None
        return self.wanted

    def idle(self) -> bool:
        """Nothing is booked anywhere."""
        runtimes = self.gateway.directory.runtimes
        return all(s.admission.in_flight == 0 and s.admission.waiting == 0 for s in runtimes) and all(
            (e.load.requests, e.load.prefill_tokens, e.load.kv_tokens) == (0, 0, 0)
            for s in runtimes
            for e in self.gateway.fleet.endpoints(s.model)
        )

    def down(self, url: str) -> bool:
        """No endpoint of the engine at ``url`` is healthy."""
        runtimes = self.gateway.directory.runtimes
        endpoints = [e for s in runtimes for e in self.gateway.fleet.endpoints(s.model)]
        return not any(e.engine.up and not e.engine.spared for e in endpoints if e.engine.url == url)

    async def heard(self, *servers: EngineServer) -> None:
        """All that the engines have said was applied: it is looked at some times a second, and not with an answer."""
        said = sorted(publisher.next_seq - 1 for server in servers for publisher in server.service.sockets.publishers)
        streams = self.gateway.feed._streams
        await eventually(lambda: sorted(stream.last for stream in streams.values()) == said, "all events are applied")

    async def metrics(self) -> str:
        return (await self.client.get(f"{self.admin_url}/metrics")).text


def config_for(*urls: str, **changes: Any) -> Config:
    """One model named ``sim`` on engines at ``urls``. Keys of ``ModelSettings`` go there, all others to ``Config``."""
    of_model = {key: changes.pop(key) for key in list(changes) if key in ModelSettings.__dataclass_fields__}
    of_model = {"name": "sim", "endpoints": tuple(EndpointSettings(url=url) for url in urls)} | of_model
    changes = {"fleet": QUICK_FLEET, "log": LogSettings(requests=False)} | changes
    return Config(models=(ModelSettings(**of_model),), **changes)


@contextlib.asynccontextmanager
async def running(config: Config, *, seed: int = 0, seat: Seat | None = None) -> AsyncIterator[Running]:
    """A gateway for ``config`` on free ports. What it logs of each request is in ``lines``. ``seat``: of a worker."""
    lines = Lines()
    state: list[Running] = []
    gateway = Gateway(config, observers=[lines], seed=seed, read=lambda: state[0].read(), seat=seat)
    clients = Listener(gateway.doors.server.runner(), backlog=128, tls=gateway.doors.tls)
    operators = Listener(gateway.admin.runner(), backlog=128)
    try:
        await gateway.start()
        url = f"{'http' if gateway.doors.tls is None else 'https'}://127.0.0.1:{await clients.open('127.0.0.1', 0)}"
        admin_url = f"http://127.0.0.1:{await operators.open('127.0.0.1', 0)}"
        async with httpx.AsyncClient(base_url=url, timeout=30, verify=False) as client:  # no certificates to load
            state.append(Running(gateway, url, admin_url, client, lines.all, config))
            yield state[0]
    finally:
        await clients.close()
        await operators.close()
        await gateway.close()


class Lines(Observer):
    """Keeps what is logged of each request."""

    def __init__(self) -> None:
        self.all: list[Settled] = []

    def settled(self, request: Settled) -> None:
        self.all.append(request)


def split_config(
    prefill: Sequence[str],
    decode: Sequence[str],
    *,
    parameters: dict[str, Any],
    bootstrap_port: int = 8998,
    **changes: Any,
) -> Config:
    """One model named ``sim`` whose prompts are computed on ``prefill`` and answered on ``decode``.

    Every prompt is split, and every usable endpoint is asked in turn. ``parameters``: of the handler.
    """
    endpoints = (
        *(EndpointSettings(url=url, role="prefill", bootstrap_port=bootstrap_port) for url in prefill),
        *(EndpointSettings(url=url, role="decode") for url in decode),
    )
    handler = HandlerSettings("split", "prefill-decode", {"threshold": 0, **parameters})
    profiles = tuple(ProfileSettings(name=name, filters=("healthy",), picker="turn") for name in ("prefill", "decode"))
    split = {"endpoints": endpoints, "handler": "split", "handlers": (handler,), "profiles": profiles}
    return config_for(**({"plugins": IN_TURN["plugins"]} | split | changes))
