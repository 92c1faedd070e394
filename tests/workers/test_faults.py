"""Covers: gateway/workers/crew.py, gateway/workers/reloads.py.

Faults under load, one after the other for as long as it takes: no request is lost, and nothing stays booked.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import resource
import signal
import socket
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from gateway.commands.processes import START_SECONDS
from gateway.workers import words
from tests.support.engines import engines
from tests.support.processes import ended, lines
from tests.support.wait import eventually, until
from tests.workers.conftest import CHAT, PATH, Service, document, started

pytestmark = pytest.mark.slow

MB = 1 << 20


@pytest.fixture
async def client():
    async with httpx.AsyncClient(timeout=60, verify=False) as client:
        yield client


class Load:
    """Clients that send one request after the other, each on connections of its own that are kept for some requests.
    ``outcomes``: how often each came."""

    def __init__(self, service: Service, clients: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self._service = service
        self._stop = False
        self._tasks = [asyncio.ensure_future(self._send(number)) for number in range(clients)]

    async def _send(self, number: int) -> None:
        for turn in itertools.count():
            async with httpx.AsyncClient(timeout=60, verify=False) as client:
                for _ in range(5):
                    if self._stop:
                        return
                    try:
                        self.outcomes[await self._one(client, stream=(number + turn) % 2 == 0)] += 1
                    except httpx.HTTPError as error:
                        self.outcomes[repr(error)] += 1

    async def _one(self, client: httpx.AsyncClient, *, stream: bool) -> str:
        body = {**CHAT, "stream": stream, "max_tokens": 10, "ignore_eos": True}
        reply = await client.post(f"{self._service.url}{PATH}", json=body)
        if reply.status_code != 200:
            return f"{reply.status_code}: {reply.text}"
        return "ok" if not stream or reply.text.rstrip().endswith("[DONE]") else f"cut off: {reply.text[-200:]}"

    async def some(self) -> None:
        """Wait for some more good answers."""
        enough = self.outcomes["ok"] + 20
        await eventually(lambda: self.outcomes["ok"] > enough, within=START_SECONDS)

    async def stop(self) -> None:
        self._stop = True
        await asyncio.gather(*self._tasks)


async def sent(service: Service) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection of its own with a request on it, whether or not a worker accepts it."""
    host, _, port = service.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(CHAT)
    head = f"POST {PATH} HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    return reader, writer


async def status(reader: asyncio.StreamReader) -> int:
    return int((await reader.readuntil(b"\r\n\r\n")).split()[1])


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def descriptors(pid: int) -> list[str]:
    """What the process has open, such as ``socket:[1234]``."""
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just closed it
            found.append(str(each.readlink()))
    return found


def sources(pid: int, port: int) -> list[int]:
    """The ports from which come the connections to ``port`` that the process has accepted."""
    own = {name.removeprefix("socket:[").removesuffix("]") for name in descriptors(pid) if name.startswith("socket:")}
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return [
        int(row[2][9:], 16) for row in rows if row[9] in own and int(row[1][9:], 16) == port and row[2][9:] != "0000"
    ]


async def is_idle(service: Service) -> bool:
    """Nothing runs at any endpoint, and nothing is booked there."""
    shown = (await service.ask("GET", "/endpoints"))["endpoints"]
    return not any(each[name] for each in shown for name in ("running", "prefill_tokens", "kv_tokens"))


@pytest.mark.timeout(900)
async def test_sixty_rolling_restarts_and_reloads_lose_no_request(folder, processes, client):
    """With the forty of tests/restart/test_succession.py, in which a service takes over from another, a hundred."""
    turns, workers = 20, range(4)
    async with engines(3, step_seconds=0.005) as servers:
        # Time for clients to see that a kept connection ends: without any, one may send just as it is closed.
        how = {"lame_duck": 2, "workers": len(workers)}
        two, three = document(servers[0].url, servers[1].url, **how), document(*(one.url for one in servers), **how)
        service = await started(processes, folder, two, client)
        load = Load(service, clients=8)
        sizes = []
        for turn in range(turns):
            before = service.pids()
            restarting = [number for number in workers if number != turn % len(workers)]
            for number in restarting:
                os.kill(before[number], signal.SIGTERM)
            service.config.write_text(json.dumps(three if turn % 4 < 2 else two))
            assert (await service.ask("POST", "/reload"))["restart"] == []
            for number in restarting:
                await service.replaced(number, before)
            sizes.append((resident(service.process.pid), len(descriptors(service.process.pid))))
        await load.stop()
        assert set(load.outcomes) == {"ok"}, load.outcomes
        assert await service.metric("kvgate_worker_restarts_total") == turns * (len(workers) - 1)
        (early, _), (late, _) = sizes[turns // 4], sizes[-1]
        assert late - early < 5 * MB, sizes
        counts = [count for _, count in sizes]
        assert max(counts) - min(counts) < 5, counts  # an operator's connection or two
        assert await service.metric("kvgate_requests_total") == load.outcomes["ok"]
        await until(lambda: is_idle(service), within=START_SECONDS)
        service.process.child.terminate()
        assert await ended(service.process) == 0
        assert not any("Traceback" in line for line in lines(service.process))


async def test_a_parent_that_stands_still_holds_nobody_up(folder, processes, client):
    """Traffic goes on; and when the parent goes on, it takes no worker for hung that was heard only late."""
    async with engines(2, step_seconds=0.005) as servers:
        service = await started(processes, folder, document(*(server.url for server in servers)), client)
        before = service.pids()
        load = Load(service, clients=4)
        os.kill(service.process.pid, signal.SIGSTOP)
        end = asyncio.get_running_loop().time() + 2 * words.HUNG
        while asyncio.get_running_loop().time() < end:
            await load.some()
        os.kill(service.process.pid, signal.SIGCONT)
        await until(service.is_up, within=START_SECONDS)
        await load.some()
        await load.stop()
        assert set(load.outcomes) == {"ok"}, load.outcomes
        assert service.pids() == before
        assert await service.metric("kvgate_requests_total") == load.outcomes["ok"]
        service.process.child.terminate()
        assert await ended(service.process) == 0


async def test_killed_workers_lose_only_what_they_had_begun(folder, processes, client):
    """Each kill may break the requests that ran there, and no others; nothing stays booked."""
    async with engines(2, step_seconds=0.005) as servers:
        service = await started(processes, folder, document(*(server.url for server in servers)), client)
        load = Load(service, clients=8)
        for turn in range(6):
            before = service.pids()
            number = turn % 2
            await load.some()
            os.kill(before[number], signal.SIGSTOP if turn == 3 else signal.SIGKILL)
            await service.replaced(number, before)
        await load.stop()
        lost = load.outcomes.total() - load.outcomes["ok"]
        assert lost <= 6 * 8, load.outcomes
        assert not any(name[:3].isdigit() for name in load.outcomes), load.outcomes
        # What the dead had begun is aborted by the engines, and counts nowhere any more.
        await until(lambda: is_idle(service), within=START_SECONDS)
        service.process.child.terminate()
        assert await ended(service.process) == 0


async def test_who_waits_at_a_worker_that_dies_on_its_way_out_is_served_by_the_other(folder, processes, client):
    async with engines(1, step_seconds=0.005) as servers:
        service = await started(processes, folder, document(servers[0].url, lame_duck=START_SECONDS), client)
        pids = service.pids()
        service.process.child.terminate()
        await eventually(
            lambda: sum("not ready for new clients" in line for line in lines(service.process)) == 2,
            within=START_SECONDS,
        )
        os.kill(pids[0], signal.SIGSTOP)
        waiting = [await sent(service) for _ in range(16)]  # about half of them to it
        os.kill(pids[0], signal.SIGKILL)
        assert {await status(reader) for reader, _ in waiting} == {200}
        for _, writer in waiting:
            writer.close()
        service.process.child.terminate()
        assert await ended(service.process) == 0


async def test_a_successor_serves_while_a_reload_waits_for_one_that_hangs(folder, processes, client):
    async with engines(1, step_seconds=0.005) as servers:
        content = document(servers[0].url)
        service = await started(processes, folder, content, client)
        before = service.pids()
        content["models"][0]["aliases"] = ["new"]
        service.config.write_text(json.dumps(content))
        os.kill(before[0], signal.SIGSTOP)
        reload = asyncio.create_task(service.ask("POST", "/reload"))
        os.kill(before[1], signal.SIGKILL)
        served = "serves, one of 2 workers"

        def successor_serves() -> bool:
            return sum(served in line and "worker=1" in line for line in lines(service.process)) == 2

        await eventually(successor_serves, within=START_SECONDS)
        # It also serves those who come to the one that hangs.
        for _ in range(16):
            async with httpx.AsyncClient(timeout=60, verify=False) as another:
                assert (await service.chat(another)).status_code == 200
        assert not reload.done()
        os.kill(before[0], signal.SIGCONT)
        assert "models[sim].aliases" in (await reload)["changes"]
        assert service.pids()[0] == before[0]
        for _ in range(16):  # some of them come to either worker
            async with httpx.AsyncClient(timeout=60, verify=False) as another:
                assert (await service.chat(another, model="new")).status_code == 200
        service.process.child.terminate()
        assert await ended(service.process) == 0


async def test_a_bomb_of_clients_on_one_worker_leaves_the_others_clients_alone(folder, processes, client):
    """Waves of 2,000 connections come to one worker, and are reset: half say nothing, half send half of a request. The
    kernel gives a connection to the same worker each time it comes from the same port."""
    bomb, waves = 2_000, 6
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # for the workers, too
    assert most > 3 * bomb
    async with engines(2, step_seconds=0.005) as servers:
        service = await started(processes, folder, document(*(server.url for server in servers)), client)
        pids, port = service.pids(), int(service.url.rpartition(":")[2])
        opened = await connected(port, [0] * (2 * bomb + 400))
        await eventually(lambda: sum(len(sources(pid, port)) for pid in pids.values()) >= len(opened), within=60)
        targets = sources(pids[0], port)[:bomb]
        assert len(targets) == bomb
        reset(opened)
        load = Load(service, clients=4)
        sizes = []
        for _ in range(waves):
            await eventually(lambda: len(sources(pids[0], port)) < 50, within=60)
            opened = await connected(port, targets)
            for number, one in enumerate(opened):
                if number % 2:
                    one.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Length: 900\r\n\r\n{")
            count = len(opened)
            assert count > bomb * 3 / 4
            await eventually(lambda count=count: len(sources(pids[0], port)) >= count, within=60)
            await load.some()
            reset(opened)
            await load.some()
            sizes.append(resident(pids[0]))
        await load.stop()
        assert set(load.outcomes) == {"ok"}, load.outcomes
        assert service.pids() == pids
        assert sizes[-1] - sizes[1] < 10 * MB, sizes
        await until(lambda: is_idle(service), within=START_SECONDS)
        service.process.child.terminate()
        assert await ended(service.process) == 0


async def connected(port: int, ports: Sequence[int]) -> list[socket.socket]:
    """A connection from each of these ports; 0: any."""
    made = []
    for source in ports:
        one = socket.socket()
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it is reset when it is closed
        try:
            one.bind(("127.0.0.1", source))
        except OSError:  # the kernel has given the port to somebody else meanwhile
            one.close()
            continue
        made.append(one)
        await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", port))
    return made


def reset(connections: Sequence[socket.socket]) -> None:
    for one in connections:
        one.close()
