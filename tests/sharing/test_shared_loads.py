"""Gateways that share their loads, in one process, with seats on the same memory."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from gateway.core.clock import ManualClock
from gateway.fleet.load.ledger import Ledger
from gateway.framework.fleet import Model
from gateway.sharing.load_table import LoadTable
from gateway.sharing.seat import Seat
from gateway.sharing.settings import SharingSettings
from gateway.sharing.shared_loads import SharedLoads, core_name
from tests.support.candidates import endpoint
from tests.support.chat import chat
from tests.support.engines import engines
from tests.support.gateway import Running, config_for, running
from tests.support.ledgers import reserve
from tests.support.wait import eventually


def seat(table: LoadTable, number: int, directory: str = "/nowhere") -> Seat:
    return Seat(number=number, count=2, directory=directory, loads_fd=table.fd)


def loads(gateway: Running) -> list[tuple[int, int, int]]:
    [runtime] = gateway.gateway.directory.runtimes
    endpoints = gateway.gateway.fleet.endpoints(runtime.model)
    return [(each.load.requests, each.load.prefill_tokens, each.load.kv_tokens) for each in endpoints]


@contextlib.asynccontextmanager
async def streaming(gateway: Running, number: int) -> AsyncIterator[None]:
    """While an answer streams."""
    body = chat(number, number, stream=True) | {"max_tokens": 4000, "ignore_eos": True}
    async with gateway.client.stream("POST", "/v1/chat/completions", json=body) as reply:
        assert reply.status_code == 200
        parts = reply.aiter_raw()
        await anext(parts)
        yield


async def test_a_worker_places_by_what_another_has_booked_and_forgets_it_when_that_ends(directory):
    parent = LoadTable.create()
    async with engines(4, step_seconds=0.05) as servers, contextlib.AsyncExitStack() as first:
        config = config_for(*(server.url for server in servers))
        one = await first.enter_async_context(running(config, seat=seat(parent, 0, directory)))
        async with running(config, seat=seat(parent, 1, directory)) as two:
            async with contextlib.AsyncExitStack() as streams:
                for number in range(4):
                    await streams.enter_async_context(streaming((one, two)[number % 2], number))
                # Whichever placed it: each request went where none was.
                for gateway in (one, two):
                    assert [requests for requests, _, _ in loads(gateway)] == [1] * 4
                    # An operator's figures of a worker are its own: they are added up over all.
                    assert sum(gateway.gateway.fleet.in_flight().values()) == 2
                    shown = (await gateway.client.get(f"{gateway.admin_url}/endpoints")).json()["endpoints"]
                    assert sorted(each["running"] for each in shown) == [0, 0, 1, 1]
                    assert sum(each["kv_tokens"] > 0 for each in shown) == 2
            await eventually(one.idle)
            await eventually(two.idle)
            async with streaming(one, 5):
                await eventually(lambda: sum(requests for requests, _, _ in loads(two)) == 1)
                one.gateway.loads.table._memory.close()  # as if its process were killed: its lock is free
                one.gateway.loads.table._memory = LoadTable.create()._memory
                await eventually(two.idle)
    parent.close()


def test_a_core_is_bound_while_any_endpoint_is_on_it():
    parent = LoadTable.create()
    one, two = (SharedLoads.of(seat(parent, number), SharingSettings(), ManualClock()) for number in range(2))
    assert one is not None
    assert two is not None
    ledgers = [Ledger(ManualClock()) for _ in range(2)]
    endpoints = []
    for shared, ledger in zip((one, two), ledgers, strict=True):
        of_one = [endpoint(model=Model(name=name)) for name in ("a", "b")]
        for each in of_one:
            each.load, each.engine, each.rank = ledger, of_one[0].engine, 1
            shared.endpoint_added(each)
        endpoints.append(of_one)
    assert core_name(endpoints[0][0]) == "e0/1"
    held = reserve(ledgers[0], 10, 20)
    two.table.catch_up()
    assert ledgers[1].requests == 1
    two.endpoint_dropped(endpoints[1][0])
    assert ledgers[1].requests == 1
    two.endpoint_dropped(endpoints[1][1])
    assert ledgers[1].requests == 0
    for each in endpoints[0]:
        one.endpoint_dropped(each)
    held.settle()
    assert (ledgers[0].requests, ledgers[0].others) == (0, None)
    for table in (one.table, two.table, parent):
        table.close()


async def test_a_gateway_that_is_alone_has_no_table():
    async with engines(1) as servers, running(config_for(servers[0].url)) as gateway:
        assert gateway.gateway.loads is None
        [runtime] = gateway.gateway.directory.runtimes
        [each] = gateway.gateway.fleet.endpoints(runtime.model)
        assert isinstance(each.load, Ledger)
        assert each.load.others is None
