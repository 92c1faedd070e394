"""What telling and hearing loads costs: replicas as processes of their own on one Valkey or Redis server.

    python -m benchmarks.replicas [--replicas 3] [--endpoints 64] [--rate 500] [--seconds 8] [--tick 0.005]

Each replica books so many requests a second on ledgers as a gateway has them, and gives them back half a second later;
nothing is placed or served. It runs twice, with and without the bus: the difference is the bus. Delays are from the
booking to the row in another replica's table, by the clock that all processes of one host have.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import time

import uvloop

from gateway.core.clock import SystemClock
from gateway.core.observer import NULL_OBSERVER
from gateway.fleet.load.ledger import Ledger, Reservation
from gateway.fleet.load.others import Row
from gateway.framework import Endpoint, Engine
from gateway.framework.fleet import Model
from gateway.sharing.bus import Bus
from gateway.sharing.load_memory import REPLICAS
from gateway.sharing.load_table import LoadTable
from gateway.sharing.settings import SharingSettings
from gateway.valkey.client import connect

HELD = 0.5
"""Seconds for which a request is booked."""


class Timed:
    """A table that notes how old what it is told was: the probe's ``settled_tokens`` are when it was booked, in us."""

    def __init__(self, table: LoadTable) -> None:
        self.delays: list[float] = []
        self._table = table
        self.changed, self.clear = table.changed, table.clear

    def write(self, writer: int, name: str, row: Row) -> bool:
        if name.startswith("probe") and row.requests:
            self.delays.append(time.monotonic() - row.settled_tokens / 1e6)
        return self._table.write(writer, name, row)


async def replica(options: argparse.Namespace, *, shared: bool) -> dict[str, float]:
    clock, table, model = SystemClock(), LoadTable.create(0, soon=asyncio.get_running_loop().call_soon), Model("m")
    timed = Timed(table)
    ledgers: list[tuple[Ledger, Endpoint]] = []
    for slot, name in enumerate(
        (*(f"http://engine-{n}:8000" for n in range(options.endpoints)), f"probe-{os.getpid()}")
    ):
        ledger = Ledger(clock)
        table.bind(name, ledger)
        ledgers.append((ledger, Endpoint(slot, name, model, Engine(name, name), load=ledger, cost=None)))  # type: ignore[arg-type]
    *usual, (probe, at_probe) = ledgers
    settings = SharingSettings(options.url, "benchmark", tick=options.tick)
    bus = Bus(
        *(settings, timed, REPLICAS),
        replica=str(os.getpid()),
        place="",
        clock=clock,
        observer=NULL_OBSERVER,
        chance=random.Random(os.getpid()),
    )
    if shared:
        bus.start()
        while len(bus.seen()) < options.replicas - 1:  # noqa: ASYNC110 -- another process sets it
            await asyncio.sleep(0.01)
    loop, chance = asyncio.get_running_loop(), random.Random(os.getpid())
    await asyncio.sleep(0.5)
    began, used, next_probe = time.monotonic(), time.process_time(), time.monotonic()
    while (now := time.monotonic()) < began + options.seconds:
        table.catch_up()
        ledger, endpoint = chance.choice(usual)
        booked = Reservation(ledger, 1000, endpoint)
        booked.book_prefill(500, seconds=0.02)
        table.publish()
        loop.call_later(0.05, booked.first_token)
        loop.call_later(HELD, booked.settle)
        if now >= next_probe:
            next_probe = now + 0.02 + chance.random() * 0.01
            assert probe.others is not None
            probe.others.own_settled_tokens = int(time.monotonic() * 1e6)
            loop.call_later(0.01, Reservation(probe, 1, at_probe).settle)
        await asyncio.sleep(chance.expovariate(options.rate))
    taken = time.process_time() - used
    if shared:
        await asyncio.sleep(0.5)
        await bus.close()
    delays = sorted(timed.delays) or [0.0]
    return {
        "cpu": taken / options.seconds,
        "p50": delays[len(delays) // 2],
        "p99": delays[len(delays) * 99 // 100],
        "messages": bus._voice.next()[3] / options.seconds,
    }


def run_all(options: argparse.Namespace, *, shared: bool) -> list[dict[str, float]]:
    words = [
        f"--{name}={getattr(options, name)}" for name in ("replicas", "endpoints", "rate", "seconds", "tick", "url")
    ]
    command = [sys.executable, "-m", "benchmarks.replicas", "--one", "shared" if shared else "alone", *words]
    count = options.replicas if shared else 1
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    return [json.loads(child.communicate()[0]) for child in children]


async def figures(url: str) -> tuple[float, float, float]:
    """Of the server: seconds of CPU, messages published, bytes sent."""
    client = connect(url)
    info = await client.info()
    stats = await client.info("commandstats")
    await client.aclose()
    published = stats.get("cmdstat_publish", {"calls": 0})["calls"]
    return info["used_cpu_user"] + info["used_cpu_sys"], published, info["total_net_output_bytes"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--endpoints", type=int, default=64)
    parser.add_argument("--rate", type=float, default=500.0, help="requests a second of each replica")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--tick", type=float, default=0.005)
    parser.add_argument("--url", default="redis://127.0.0.1:26379")
    parser.add_argument("--one", choices=("shared", "alone"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(uvloop.run(replica(options, shared=options.one == "shared"))))
        return
    server = shutil.which("valkey-server") or shutil.which("redis-server")
    assert server is not None, "install valkey-server or redis-server"
    started = subprocess.Popen(
        [server, "--port", options.url.rpartition(":")[2], "--save", ""], stdout=subprocess.DEVNULL
    )
    try:
        time.sleep(1.0)
        [alone] = run_all(options, shared=False)
        before = asyncio.run(figures(options.url))
        found = run_all(options, shared=True)
        cpu, published, sent = (
            after - was for after, was in zip(asyncio.run(figures(options.url)), before, strict=True)
        )
    finally:
        started.terminate()
        started.wait()
    mean = {key: sum(one[key] for one in found) / len(found) for key in found[0]}
    cost, delay = 100 * (mean["cpu"] - alone["cpu"]), (1e3 * mean["p50"], 1e3 * mean["p99"])
    print(f"{options.replicas} replicas, {options.endpoints} endpoints, {options.rate:g} requests/s of each")
    print(f"CPU of a replica      {cost:5.1f} % of a core, beside {100 * alone['cpu']:.1f} % for the bookings")
    print(f"CPU of the server     {100 * cpu / options.seconds:5.1f} % of a core")
    each = sent / max(1, published * options.replicas)
    print(f"messages of a replica {mean['messages']:5.0f} a second, of {each:.0f} bytes")
    print(f"booked to applied     {delay[0]:5.2f} ms at the median, {delay[1]:.2f} ms at the 99th percentile")


if __name__ == "__main__":
    main()
