"""The simulator as a process."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import httpx
import pytest

from gateway.commands.processes import Process, Processes
from simulator.__main__ import parse
from tests.support.processes import ended, terminated

SIMULATOR = (sys.executable, "-m", "simulator")


@pytest.fixture
async def process(processes: Processes) -> tuple[Process, dict[str, Any]]:
    """A running one, and the line that it printed."""
    arguments = ("--served-model-name", "named", "--num-blocks", "99", "--step-seconds", "0.001")
    process = processes.start("simulator", [*SIMULATOR, *arguments], talks=True)
    return process, json.loads(await asyncio.to_thread(process.line))


async def test_it_says_where_it_listens_and_ends_on_sigterm(process: tuple[Process, dict[str, Any]]) -> None:
    running, said = process
    assert said["pid"] == running.pid
    assert said["kv_endpoint"].startswith("tcp://127.0.0.1:")
    async with httpx.AsyncClient(base_url=said["url"], verify=False) as client:
        assert (await client.get("/v1/models")).json()["data"][0]["id"] == "named"
        body = {"prompt": "x", "max_tokens": 3}
        assert (await client.post("/v1/completions", json=body)).json()["usage"]["completion_tokens"] == 3
    assert await terminated(running) == 0
    assert running.child.stdout is not None
    assert (running.child.stdout.read(), running.log.read_text()) == ("", "")


async def test_a_deadly_request_ends_it_with_1(process: tuple[Process, dict[str, Any]]) -> None:
    running, said = process
    async with httpx.AsyncClient(base_url=said["url"], verify=False) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("/v1/completions", json={"kv_transfer_params": {"do_remote_prefill": True}})
    assert await ended(running) == 1


async def test_refused_connections_come_back(process: tuple[Process, dict[str, Any]]) -> None:
    """Under uvloop, which closes its sockets a moment later than asyncio does."""
    _, said = process
    async with httpx.AsyncClient(verify=False) as client:
        await client.post(f"{said['url']}/simulator/faults", json={"kind": "refuse", "seconds": 2})
    refused = False
    async with asyncio.timeout(30), httpx.AsyncClient(verify=False) as client:
        while True:
            try:
                await client.get(f"{said['url']}/health", headers={"connection": "close"})
            except httpx.ConnectError:
                refused = True
            else:
                if refused:
                    break
            await asyncio.sleep(0.005)


async def test_a_taken_port_is_told(process: tuple[Process, dict[str, Any]], processes: Processes) -> None:
    _, said = process
    port = said["url"].rpartition(":")[2]
    second = processes.start("second", [*SIMULATOR, "--port", port], talks=True)
    assert await ended(second) == 1
    assert second.child.stdout is not None
    assert second.child.stdout.read() == ""
    assert f"cannot listen on 127.0.0.1:{port}" in second.log.read_text()


def test_every_setting_is_a_flag() -> None:
    settings, host, port = parse(
        [
            "--host",
            "0.0.0.0",
            "--port",
            "9",
            "--aliases",
            "a,b",
            "--no-kv-events",
            "--api-key",
            "k",
            "--max-queued",
            "4",
            "--connector",
            "mooncake",
            "--kv-role",
            "producer",
            "--handshake-timeout",
            "0.5",
        ]
    )
    assert (host, port, settings.aliases, settings.kv_events) == ("0.0.0.0", 9, ("a", "b"), False)
    assert (settings.api_key, settings.max_queued, settings.tokenizer) == ("k", 4, None)
    assert (settings.connector, settings.kv_role, settings.handshake_timeout) == ("mooncake", "producer", 0.5)
    assert (parse([])[0].served_name, parse([])[0].connector) == ("sim", "nixl")


@pytest.mark.parametrize("arguments", [["--block-size", "0"], ["--nope"], ["--ranks", "x"], ["--connector", "nope"]])
def test_a_wrong_flag_is_told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(arguments)
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_the_import_is_light() -> None:
    """Four of them start on two cores: transformers alone would take seconds each."""
    code = (
        "import sys, simulator.__main__, simulator.server;"
        "print(sorted({'transformers', 'torch', 'gateway', 'numpy', 'huggingface_hub'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
