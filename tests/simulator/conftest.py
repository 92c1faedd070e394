"""Simulated engines on real sockets, each with a client; and captured exchanges of a real one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from simulator.server import EngineServer
from simulator.settings import EngineSettings
from tests.support.ports import free_in_a_row

DATA = Path(__file__).parents[1] / "data" / "simulator"

CAPTURED = EngineSettings(
    served_name="tiny", block_size=32, num_blocks=256, max_model_len=4096, report_cached_tokens=False, connector="none"
)
"""Started as the engine of the captures was."""


@dataclass
class Running:
    server: EngineServer
    client: httpx.AsyncClient

    async def chat(self, text: str = "Hello there", **more: Any) -> dict[str, Any]:
        """An answered chat."""
        message = {"role": "user", "content": text}
        body = {"model": self.server.settings.served_name, "messages": [message], "ignore_eos": True, **more}
        answer = await self.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def metric(self, name: str, **labels: str) -> float:
        """The one sample of the scrape with this name and, among others, these labels."""
        lines = (await self.client.get("/metrics")).text.splitlines()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        found = [
            line for line in lines if line.split(" ")[0].split("{")[0] == name and all(part in line for part in wanted)
        ]
        assert len(found) == 1, found
        return float(found[0].rpartition(" ")[2])


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start an engine with these settings; all are closed with the test."""
    running: list[Running] = []

    async def begin(settings: EngineSettings | None = None, *, port: int = 0, **changes: Any) -> Running:
        server = EngineServer(settings or EngineSettings(**{"step_seconds": 0.0005, **changes}))
        await server.start(port=port or free_in_a_row())
        # Without certificates: reading them takes longer than most tests.
        client = httpx.AsyncClient(base_url=server.url, timeout=20, verify=False, trust_env=False)
        running.append(Running(server, client))
        return running[-1]

    yield begin
    for each in running:
        await each.client.aclose()
        await each.server.close()


@pytest.fixture
async def engine(start: Start) -> Running:
    """One engine with its defaults, in a hurry."""
    return await start()


@dataclass(frozen=True)
class Exchange:
    """A captured one. ``headers``: lower-case names."""

    status: int
    headers: dict[str, str]
    body: bytes
    request: bytes | None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@pytest.fixture
def captured() -> Callable[[str], Exchange]:
    def read(name: str) -> Exchange:
        head = (DATA / f"{name}.headers").read_text().splitlines()
        pairs = (line.partition(": ") for line in head[1:] if line)
        request = DATA / f"{name}.request.json"
        return Exchange(
            status=int(head[0].split()[1]),
            headers={key.lower(): value for key, _, value in pairs},
            body=(DATA / f"{name}.body").read_bytes(),
            request=request.read_bytes() if request.exists() else None,
        )

    return read


@pytest.fixture
def captured_settings() -> EngineSettings:
    return CAPTURED


@pytest.fixture
async def tiny(start: Start, captured_settings: EngineSettings) -> Running:
    return await start(captured_settings)


@pytest.fixture(scope="session")
def folder(tokenizer: str) -> Path:
    """The built tokenizer."""
    return Path(tokenizer)


@pytest.fixture(scope="session")
def reference(folder: Path) -> Any:
    """The same, as transformers loads it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)
