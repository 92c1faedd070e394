"""Covers: gateway/serve.py, gateway/cli.py, gateway/picker_listeners.py, gateway/listeners.py.

`kvgate epp`, and a picker beside the proxy, as processes: they come up, hand their sockets on, and go without a stream
that breaks.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc import aio

from gateway.commands.processes import Process, Processes, offline
from gateway.epp.messages import HttpBody, HttpHeaders
from gateway.epp.transport.health import HealthCheckRequest, HealthCheckResponse
from tests.support.engines import simulated
from tests.support.ext_proc import MODES, AskingGateway, header_map
from tests.support.ports import free_in_a_row
from tests.support.processes import KVGATE, ended, told, url_of
from tests.support.wait import until

ASK: dict[str, Any] = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 200}
STREAM = ASK | {"stream": True, "ignore_eos": True}


def write(folder: Path, url: str, **changes: Any) -> Path:
    epp = {"listen": "127.0.0.1:0", "health": "127.0.0.1:0", "drain": 20.0}
    listen = {"port": 0, "admin": "127.0.0.1:0", "lame_duck": 0.5}
    config = {"models": [{"name": "sim", "endpoints": [{"url": url}]}], "epp": epp, "listen": listen}
    path = folder / "plugins.yaml"
    path.write_text(json.dumps(config | changes))
    return path


async def healthy(channel: aio.Channel, service: str = "readiness") -> int:
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=HealthCheckRequest.SerializeToString,
        response_deserializer=HealthCheckResponse.FromString,
    )
    return int((await check(HealthCheckRequest(service=service))).status)


@asynccontextmanager
async def asking(process: Process, mode: str) -> AsyncIterator[AskingGateway]:
    port = await told(process, r"picker: gRPC on 127.0.0.1:(\d+)")
    async with httpx.AsyncClient(timeout=30) as http, aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield AskingGateway(channel, http, MODES[mode])


async def test_kvgate_epp_picks_and_tells_its_health(processes: Processes, tmp_path):
    async with simulated() as server:
        process = processes.start("picker", [*KVGATE, "epp", str(write(tmp_path, server.url))], env=offline(os.environ))
        async with asking(process, "full") as front:
            carried = await front.post(ASK)
            assert carried.destination[0] == server.url.removeprefix("http://")
            health = await told(process, r"picker-health: gRPC on 127.0.0.1:(\d+)")
            async with aio.insecure_channel(f"127.0.0.1:{health}") as channel:
                assert await healthy(channel) == await healthy(channel, "liveness") == 1
                assert await healthy(channel, "unknown") == 3
            await told(process, "(serves gateways that ask)")
            assert "serves on http" not in process.log.read_text(), "no client is served"
            os.kill(process.pid, signal.SIGINT)
            assert await ended(process) == 0


@pytest.mark.parametrize("mode", ["full", "ends"])
async def test_at_its_end_every_call_ends_well_and_no_stream_breaks(processes: Processes, tmp_path, mode):
    async with simulated(step_seconds=0.01) as server:
        process = processes.start("picker", [*KVGATE, "epp", str(write(tmp_path, server.url))], env=offline(os.environ))
        async with asking(process, mode) as front:
            asked = await front.ask(STREAM)
            await asked.answered()
            head = [(":status", "200"), ("content-type", "text/event-stream")]
            await asked.call.say(response_headers=HttpHeaders(headers=header_map(head)))
            assert await asked.call.hear() is not None
            os.kill(process.pid, signal.SIGTERM)
            await until(lambda: _is(healthy(front.channel), 2), "it says that it should be asked no more")
            late = await front.ask(ASK)
            assert not (await late.answered()).refused, "it answers for a while all the same"
            late.call.reset()
            if mode == "full":
                await told(process, "(of grace for running answers)")
                for _ in range(20):
                    await asked.call.say(response_body=HttpBody(body=b"data: {}\n\n"))
                await asked.call.say(response_body=HttpBody(body=b"data: [DONE]\n\n", end_of_stream=True))
                for _ in range(21):
                    assert await asked.call.hear() is not None, "every part passes"
            assert await asked.call.hear() is None
            assert await asked.call.status() is grpc.StatusCode.OK
            assert await ended(process) == 0
            assert "were cut" not in process.log.read_text()


async def test_over_tls_with_a_certificate_of_its_own(processes: Processes, tmp_path):
    async with simulated() as server:
        epp = {"listen": "127.0.0.1:0", "health": "", "tls": "self-signed"}
        command = [*KVGATE, "epp", str(write(tmp_path, server.url, epp=epp))]
        process = processes.start("picker", command, env=offline(os.environ))
        port = await told(process, r"picker: gRPC on 127.0.0.1:(\d+)")
        shown = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", int(port)))
        options = [("grpc.ssl_target_name_override", "localhost")]
        believing = grpc.ssl_channel_credentials(shown.encode())
        async with aio.secure_channel(f"127.0.0.1:{port}", believing, options) as channel:
            assert await healthy(channel) == 1


async def test_files_of_tls_that_cannot_be_used_are_named(processes: Processes, tmp_path):
    epp = {"listen": "127.0.0.1:0", "health": "", "tls": {"certificate": "missing.crt"}}
    command = [*KVGATE, "epp", str(write(tmp_path, "http://127.0.0.1:9", epp=epp))]
    process = processes.start("picker", command, env=offline(os.environ))
    assert await ended(process) == 2
    assert "epp.tls.certificate: missing.crt cannot be read" in process.log.read_text()


async def _is(wait: Any, value: int) -> bool:
    return bool(await wait == value)


async def test_a_proxy_and_a_picker_in_one_process_hand_both_on_to_the_next(processes: Processes, tmp_path):
    async with simulated() as server, httpx.AsyncClient(timeout=30) as client:
        listen = {"port": free_in_a_row(1), "admin": "", "lame_duck": 0.5}
        command = [*KVGATE, "serve", str(write(tmp_path, server.url, listen=listen))]
        first = processes.start("first", command, env=offline(os.environ))
        url = await url_of(first)
        async with asking(first, "ends") as front:
            assert (await client.post(f"{url}/v1/chat/completions", json=ASK)).status_code == 200
            assert (await front.post(ASK)).status == 200
            asked = await front.ask(STREAM)
            await asked.answered()
            second = processes.start("second", command, env=offline(os.environ))
            assert await url_of(second) == url
            assert await asked.call.hear() is None
            assert await asked.call.status() is grpc.StatusCode.OK, "a call of the first one ends well"
            assert await ended(first) == 0
            assert (await client.post(f"{url}/v1/chat/completions", json=ASK)).status_code == 200
        async with asking(first, "ends") as front:  # on the same port
            assert (await front.post(ASK)).status == 200
        await told(second, "(request_id=id-of-envoy)")
