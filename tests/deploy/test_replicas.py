"""deploy/replicas: its shape, and the whole of it as processes of this machine: three gateways with the example's own
configuration behind HAProxy with the example's own, and a real server between them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import yaml

from gateway.commands.processes import Process, Processes
from gateway.config.load import load
from gateway.proxy.settings import ListenSettings
from simulator.tokenizer import build_tokenizer
from tests.deploy.conftest import ROOT, check_compose
from tests.support.chat import chat
from tests.support.engines import engines
from tests.support.ports import free_in_a_row
from tests.support.processes import KVGATE, terminated, url_of
from tests.support.valkey import ValkeyServer, needs_valkey, valkey
from tests.support.wait import eventually as within_seconds

FOLDER = ROOT / "deploy/replicas"
HAPROXY = shutil.which("haproxy")
NAMES = ("gateway-1", "gateway-2", "gateway-3")

# A user's machine may do without; CI has to have it.
needs_haproxy = pytest.mark.skipif(HAPROXY is None and not os.environ.get("CI"), reason="haproxy is not installed")


def test_haproxy_holds_no_event_of_a_stream_back():
    """Without this option each is sent with the next ones: 28 ms to a first token became 170."""
    defaults = (FOLDER / "haproxy.cfg").read_text().partition("\ndefaults\n")[2].partition("\n\n")[0]
    assert "option http-no-delay" in defaults


async def eventually(condition, what: str) -> None:
    await within_seconds(condition, what, within=60.0)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((FOLDER / "compose.yaml").read_text())


def test_its_files_and_services_are_there(compose) -> None:
    check_compose(FOLDER, compose)


def test_the_gateways_are_the_same_and_know_engines_and_server(compose) -> None:
    services = compose["services"]
    ours = [{key: value for key, value in services[name].items() if key != "build"} for name in NAMES]
    assert ours[0] == ours[1] == ours[2]
    assert int(ours[0]["stop_grace_period"].removesuffix("s")) > ListenSettings().grace
    config = load(FOLDER / "plugins.yaml", ours[0]["environment"])
    [model] = config.models
    assert [endpoint.url for endpoint in model.endpoints] == ["http://engine-a:8000", "http://engine-b:8000"]
    assert config.sharing.url == "valkey://:an-example@valkey:6379"
    command = services["valkey"]["command"]
    assert command[command.index("--requirepass") + 1] == config.sharing.password


@needs_haproxy
def test_haproxy_takes_its_configuration() -> None:
    assert HAPROXY is not None, "CI installs haproxy"
    addresses = {f"GATEWAY_{number}": f"127.0.0.1:{number}" for number in (1, 2, 3)}  # the names are the compose file's
    checked = subprocess.run(
        [HAPROXY, "-c", "-f", FOLDER / "haproxy.cfg"], env=addresses, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stderr.upper()


@dataclass
class Service:
    """``url``: HAProxy's. ``running``: the gateways' processes; ``start`` starts one, ``admin`` is its listener."""

    processes: Processes
    environ: dict[str, str]
    ports: dict[str, int]
    url: str
    client: httpx.AsyncClient
    running: dict[str, Process] = field(default_factory=dict)

    def start(self, name: str) -> None:
        port = self.ports[name]
        environ = self.environ | {"ADMIN": f"127.0.0.1:{port + 1}"}
        command = [*KVGATE, "serve", str(FOLDER / "plugins.yaml"), "--host", "127.0.0.1", "--port", str(port)]
        self.running[name] = self.processes.start(name, command, env=environ)

    async def up(self, name: str) -> None:
        await url_of(self.running[name])

    async def hears(self, name: str, others: int) -> None:
        """Wait until the gateway hears so many others."""
        expected, url = f'kvgate_peers{{state="fresh"}} {others}.0', f"http://127.0.0.1:{self.ports[name] + 1}/metrics"
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if expected in (await self.client.get(url)).text:
                        return
                await asyncio.sleep(0.05)

    async def answers(self, count: int) -> list[int]:
        """Statuses of so many chats at once."""
        posts = [self.client.post(f"{self.url}/v1/chat/completions", json=chat(i % 4, i)) for i in range(count)]
        return [answer.status_code for answer in await asyncio.gather(*posts)]


@contextlib.asynccontextmanager
async def service(server: ValkeyServer, processes: Processes, tokenizer: str) -> AsyncIterator[Service]:
    assert HAPROXY is not None, "CI installs haproxy"
    first = free_in_a_row(7)
    ports = {name: first + 2 * number for number, name in enumerate(NAMES)}
    url = f"http://127.0.0.1:{first + 6}"
    async with engines(2, tokenizer=tokenizer) as (a, b), httpx.AsyncClient(timeout=60, verify=False) as client:
        environ = {"PATH": os.environ["PATH"], "TOKENIZER": tokenizer, "ENGINE_A": a.url, "ENGINE_B": b.url}
        environ["VALKEY_URL"] = server.settings.url
        made = Service(processes, environ, ports, url, client)
        for name in NAMES:
            made.start(name)
        for name in NAMES:
            await made.up(name)
        addresses = {f"GATEWAY_{n}": f"127.0.0.1:{ports[name]}" for n, name in enumerate(NAMES, 1)}
        bound = {"BIND": url.removeprefix("http://"), "PATH": os.environ["PATH"]}
        processes.start("haproxy", [HAPROXY, "-db", "-f", str(FOLDER / "haproxy.cfg")], env=addresses | bound)
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get(f"{url}/readyz")).status_code == 200:
                        break
                await asyncio.sleep(0.05)
        yield made


@pytest.mark.slow  # four gateways start
@needs_valkey
@needs_haproxy
async def test_three_gateways_serve_as_one_whoever_of_them_ends(tmp_path, processes: Processes) -> None:
    tokenizer = tmp_path / "tokenizer"
    build_tokenizer(str(tokenizer))
    async with valkey(tmp_path, "--requirepass", "an-example") as server:
        async with service(server, processes, str(tokenizer)) as three:
            for name in NAMES:
                await three.hears(name, 2)
            assert await three.answers(30) == [200] * 30

            one, two, _ = NAMES
            three.running[one].child.send_signal(signal.SIGKILL)
            assert await three.answers(30) == [200] * 30, "requests go to the others"
            await three.hears(two, 1)
            three.start(one)
            await three.hears(two, 2)
            await three.hears(one, 2)

            ending = asyncio.create_task(terminated(three.running[two]))
            while not ending.done():
                assert await three.answers(6) == [200] * 6
            assert await ending == 0
            await three.hears(one, 1)

            await server.stop()
            assert await three.answers(12) == [200] * 12, "nobody needs the server to serve"
            await server.start()
            await three.hears(one, 1)
