"""Covers: gateway/restart/succession.py, gateway/restart/takeover.py, gateway/restart/again.py,
gateway/restart/finding.py, gateway/listeners.py, gateway/serve.py, gateway/workers/service.py.

Restarts of real processes under load: of what clients have sent nothing is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway.cli import EXIT_CONFIG
from gateway.commands.processes import START_SECONDS, offline
from gateway.restart.activation import FIRST
from tests.restart.conftest import CHAT, is_dead, load, serve, write
from tests.support.chat import chat
from tests.support.engines import simulated
from tests.support.ports import free_in_a_row
from tests.support.processes import KVGATE, ended, lines, told, url_of
from tests.support.wait import eventually

MOVE = """
import os, sys
numbers, command = sys.argv[1 : sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1 :]
for place, number in enumerate(numbers):
    os.dup2(int(number), 3 + place)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(numbers))}
os.execv(command[0], command)
"""


async def is_red_and_serves(client: httpx.AsyncClient, url: str) -> None:
    reply = await client.get(f"{url}/readyz")
    assert (reply.status_code, reply.json()["status"]) == (503, "draining")
    assert (await client.post(f"{url}/v1/chat/completions", json=CHAT)).status_code == 200


@pytest.mark.slow
async def test_sigterm_to_all_turns_workers_red_which_go_on_accepting_then_lose_nothing(tmp_path, processes):
    """systemd sends it to each process of a service."""
    async with simulated(step_seconds=0.002) as server, httpx.AsyncClient(verify=False, timeout=30) as client:
        process = serve(processes, write(tmp_path, server.url, free_in_a_row(2), workers=2))
        url = await url_of(process)
        async with load(url) as clients:
            await clients.more(40)
            os.killpg(process.pid, signal.SIGTERM)
            await eventually(
                lambda: sum("not ready for new clients" in line for line in lines(process)) == 2,
                "each worker has turned red",
                within=START_SECONDS,
            )
            await is_red_and_serves(client, url)
            assert await ended(process) == 0
        assert clients.failed == []
        assert clients.refused == 8, "each was served until it could not connect"


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_forty_processes_that_take_over_one_after_the_other_lose_no_request(tmp_path, processes):
    async with simulated(step_seconds=0.002) as server:
        config = write(tmp_path, server.url, free_in_a_row(2))
        process = serve(processes, config, "gateway-0")
        url = await url_of(process)
        async with load(url) as clients:
            for number in range(40):
                await clients.more(20)
                successor = serve(processes, config, f"gateway-{number + 1}")
                assert await url_of(successor) == url
                assert await ended(process) == 0
                assert await told(process, r"process (\d+) has taken over") == str(successor.pid)
                process = successor
            await clients.more(20)
        assert (clients.failed, clients.refused) == ([], 0)


@pytest.mark.slow
async def test_a_service_that_is_told_to_stop_is_taken_over_while_it_still_accepts(tmp_path, processes):
    async with simulated(step_seconds=0.002) as server:
        config = write(tmp_path, server.url, free_in_a_row(2), workers=2, lame_duck=2 * START_SECONDS)
        process = serve(processes, config, "gateway-0")
        url = await url_of(process)
        async with load(url) as clients:
            await clients.more(20)
            process.child.terminate()
            await told(process, "(accepting for .* more)")
            successor = serve(processes, config, "gateway-1")
            assert await url_of(successor) == url
            assert await ended(process) == 0
            assert await told(process, r"process (\d+) has taken over") == str(successor.pid)
            await clients.more(20)
        assert (clients.failed, clients.refused) == ([], 0)


@pytest.mark.slow
async def test_a_service_whose_answers_still_run_holds_its_port_no_more(tmp_path, processes):
    async with simulated(step_seconds=0.01) as server, httpx.AsyncClient(verify=False, timeout=60) as client:
        config = write(tmp_path, server.url, free_in_a_row(2), workers=2, lame_duck=0, grace=2 * START_SECONDS)
        process = serve(processes, config, "gateway-0")
        url = await url_of(process)
        long = CHAT | {"stream": True, "max_tokens": 10_000, "ignore_eos": True}
        async with client.stream("POST", f"{url}/v1/chat/completions", json=long) as reply:
            events = reply.aiter_lines()
            await anext(events)
            process.child.terminate()
            await told(process, "(grace for running answers)")
            successor = serve(processes, config, "gateway-1")
            assert await url_of(successor) == url
            assert process.running
            for _ in range(8):  # some come to each of its workers
                async with httpx.AsyncClient(verify=False, timeout=60) as other:
                    assert (await other.post(f"{url}/v1/chat/completions", json=CHAT)).status_code == 200
            await anext(events)
        assert await ended(process) == 0


async def test_one_process_after_the_other_serves_and_none_of_their_clients_notices(tmp_path, processes):
    """SIGUSR2 with a wrong file and with a good one; SIGTERM, and another one that takes over meanwhile; SIGTERM. The
    service manager hears which process serves, and so does nobody else. Any free port is kept, too."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)

        async def heard() -> str:
            return (await asyncio.get_running_loop().sock_recv(manager, 1000)).decode()

        environ = offline(os.environ) | {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        async with (
            simulated(step_seconds=0.002) as server,
            httpx.AsyncClient(verify=False, timeout=30) as client,
            asyncio.timeout(4 * START_SECONDS),
        ):
            long = {"admin": "127.0.0.1:0", "lame_duck": 4 * START_SECONDS}
            config = write(tmp_path, server.url, 0, **long)
            good = config.read_text()
            first = processes.start("first", [*KVGATE, "serve", str(config)], env=environ)
            assert await heard() == "READY=1"
            url = await url_of(first)
            async with load(url) as clients:
                config.write_text(good.replace('"models"', '"modles"'))
                first.child.send_signal(signal.SIGUSR2)
                assert "modles" in await told(first, r"has not taken over: (.*); this one goes on")
                await told(first, f"(ended with {EXIT_CONFIG}); this one goes on")
                config.write_text(good)
                first.child.send_signal(signal.SIGUSR2)
                name, _, pid = (await heard()).partition("=")
                assert name == "MAINPID"
                assert await heard() == "READY=1", "from the new one, once it is the main one"
                assert await told(first, r"process (\d+) has taken over") == pid
                assert await ended(first) == 0
                await clients.more(20)

                os.kill(int(pid), signal.SIGTERM)
                assert await heard() == "STOPPING=1"
                await is_red_and_serves(client, url)
                config = write(tmp_path, server.url, int(url.rpartition(":")[2]), **long | {"lame_duck": 1})
                last = processes.start("last", [*KVGATE, "serve", str(config)], env=environ)
                assert [await heard(), await heard()] == [f"MAINPID={last.pid}", "READY=1"]
                await eventually(lambda: is_dead(int(pid)), within=START_SECONDS)
                await clients.more(20)
                assert (clients.failed, clients.refused) == ([], 0)

                last.child.terminate()
                assert await heard() == "STOPPING=1"
                assert await ended(last) == 0
            assert clients.failed == []
            assert clients.refused == 8, "each was served until it could not connect"


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_sockets_of_the_service_manager_outlive_the_process(tmp_path, workers):
    with contextlib.ExitStack() as stack:
        clients, admin = (stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2))
        url, admin_url = (f"http://127.0.0.1:{one.getsockname()[1]}" for one in (clients, admin))
        async with simulated() as server, httpx.AsyncClient(verify=False, timeout=START_SECONDS) as client:
            config = write(tmp_path, server.url, 1, workers=workers, lame_duck=0)  # a port on which it may not listen
            for _ in range(2):
                with activated(config, clients, admin) as process:
                    # It is still starting: the request waits in the socket.
                    assert (await client.post(f"{url}/v1/chat/completions", json=CHAT)).status_code == 200
                    assert (await client.get(f"{admin_url}/livez")).status_code == 200
                    process.terminate()
                    assert await asyncio.to_thread(process.wait, START_SECONDS) == 0


@contextlib.contextmanager
def activated(config: Path, *sockets: socket.socket) -> Iterator[subprocess.Popen[bytes]]:
    """As a service manager starts it: the sockets are the descriptors from 3 on, and it is told its own number."""
    numbers = [one.fileno() for one in sockets]
    assert min(numbers) >= FIRST + len(numbers), "none is where another one goes"
    command = [sys.executable, "-c", MOVE, *map(str, numbers), "--", *KVGATE, "serve", str(config)]
    with subprocess.Popen(command, env=offline(os.environ), pass_fds=numbers) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("counts", "how"), [((1, 2), "again"), ((2, 2), "again"), ((2, 3), "on the port"), ((3, 1), "on the port")]
)
async def test_a_service_of_workers_takes_over_and_is_taken_over(tmp_path, processes, counts, how):
    async with simulated(step_seconds=0.002) as server, httpx.AsyncClient(verify=False, timeout=30) as client:
        port = free_in_a_row(2)
        process = serve(processes, write(tmp_path, server.url, port, workers=counts[0]), "gateway-0")
        url = await url_of(process)
        async with load(url) as clients:
            await clients.more(20)
            config = write(tmp_path, server.url, port, workers=counts[1])
            if how == "again":
                process.child.send_signal(signal.SIGUSR2)
            else:
                successor = serve(processes, config, "gateway-1")
                assert await url_of(successor) == url
            assert await ended(process) == 0
            pid = int(await told(process, r"process (\d+) has taken over"))
            await clients.more(40)
            assert (await client.get(f"http://127.0.0.1:{port + 1}/metrics")).status_code == 200
        assert (clients.failed, clients.refused) == ([], 0)
        os.kill(pid, signal.SIGTERM)
        await eventually(lambda: is_dead(pid), within=START_SECONDS)


@pytest.mark.slow
async def test_engines_that_connect_to_it_connect_to_its_successor(tmp_path, processes, tokenizer):
    listen = f"tcp://127.0.0.1:{free_in_a_row()}"
    async with (
        simulated(tokenizer=tokenizer, connector="none", kv_connect=listen, topic="kv@a@sim") as server,
        httpx.AsyncClient(verify=False, timeout=30) as client,
    ):
        port = free_in_a_row(2)
        config = write(tmp_path, server.url, port)
        content = json.loads(config.read_text())
        events = {"connects": True}
        content["models"][0] |= {
            "tokenizer": tokenizer,
            "endpoints": [{"url": server.url, "name": "a", "kv_events": events}],
        }
        config.write_text(json.dumps(content | {"kv_events": {"listen": listen}}))
        process = serve(processes, config)
        url = await url_of(process)

        numbers = itertools.count()

        async def heard() -> bool:
            """Whether the serving process follows the engine's events; it has some to tell of each new prompt."""
            reply = await client.post(f"{url}/v1/chat/completions", json=chat(next(numbers)))
            assert reply.status_code == 200
            text = (await client.get(f"http://127.0.0.1:{port + 1}/metrics")).text
            return 'kvgate_kv_stream_state{endpoint="a",state="live"} 1.0' in text

        async with asyncio.timeout(START_SECONDS):
            while not await heard():
                pass
        async with asyncio.timeout(2 * START_SECONDS):
            process.child.send_signal(signal.SIGUSR2)
            assert await ended(process) == 0
            pid = int(await told(process, r"process (\d+) has taken over"))
            while not await heard():
                pass
        os.kill(pid, signal.SIGTERM)
        await eventually(lambda: is_dead(pid), within=START_SECONDS)
