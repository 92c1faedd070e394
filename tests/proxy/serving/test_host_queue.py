"""Covers: gateway/proxy/serving/host_queue.py, gateway/proxy/serving/queued_call.py, gateway/queueing.py.

Two workers of a host in one loop, as whole gateways with their sockets: they have one queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from gateway.config.settings import Config
from gateway.fleet.reports import Reports
from gateway.fleet.settings import EndpointSettings
from gateway.flow.questions import Waits
from gateway.flow.settings import QueueSettings
from gateway.proxy.serving.queueing import ModelQueue
from gateway.sharing.load_table import LoadTable
from gateway.sharing.seat import Seat
from gateway.tenants.settings import TenantsSettings
from tests.support.engines import engines
from tests.support.gateway import Running, config_for, running
from tests.support.wait import eventually

PATH = "/v1/chat/completions"
QUEUE = QueueSettings(max_wait=60.0, patience=30.0, target=50.0)


def asked(number: int, tokens: int = 4) -> dict[str, Any]:
    return {
        "model": "sim",
        "messages": [{"role": "user", "content": f"{number} " + "wait for me " * 40}],
        "max_tokens": tokens,
    }


def queue_of(one: Running) -> ModelQueue:
    return one.gateway.reloading.wiring.queues["sim"]


def waiting(one: Running) -> int:
    return queue_of(one).held.waiting


@asynccontextmanager
async def host_of(folder: Path, tokenizer: str) -> AsyncIterator[tuple[Config, list[Seat]]]:
    """Of two workers, before an engine that has room for one request."""
    parent = LoadTable.create()
    try:
        async with engines(1, tokenizer=tokenizer, step_seconds=0.02) as servers:
            full = (EndpointSettings(url=servers[0].url, kv_capacity_tokens=16),)
            config = config_for(endpoints=full, tokenizer=tokenizer, queue=QUEUE)
            config = replace(config, tenants=TenantsSettings(header="x-tenant", trusted=True))
            yield config, [Seat(number, 2, str(folder), loads_fd=parent.fd) for number in range(2)]
    finally:
        parent.close()


@asynccontextmanager
async def hosted(folder: Path, tokenizer: str) -> AsyncIterator[tuple[Running, Running]]:
    """The lead and another worker of such a host."""
    async with (
        host_of(folder, tokenizer) as (config, seats),
        running(config, seat=seats[0]) as lead,
        running(config, seat=seats[1]) as other,
    ):
        for one in (lead, other):
            await eventually(lambda one=one: len(one.gateway.siblings.live) == 2, "they know each other")
            await eventually(lambda one=one: queue_of(one).members()[0].engine.up, "the engine is up")
        await eventually(lambda: queue_of(other).host.asking.lead == 0, "the other asks the lead")
        yield lead, other
        for one in (lead, other):
            host = queue_of(one).host
            await eventually(lambda host=host: not len(host.guests) + len(host.asking), "nothing is left")
            assert waiting(one) == 0
            assert queue_of(one).members()[0].load.own_requests == 0


def ask(one: Running, number: int, tokens: int = 4, tenant: str = "a") -> asyncio.Task[Any]:
    return asyncio.create_task(one.client.post(PATH, json=asked(number, tokens), headers={"x-tenant": tenant}))


async def test_who_finds_no_room_at_one_worker_waits_in_the_queue_of_the_lead(tokenizer, tmp_path):
    async with hosted(tmp_path, tokenizer) as (lead, other):
        first = ask(other, 0, tokens=30)
        await eventually(lambda: queue_of(other).members()[0].load.requests == 1, "it is with the engine")
        rest = [ask(other, number) for number in range(1, 4)]
        await eventually(lambda: waiting(lead) == 3, "they wait at the lead")
        assert waiting(other) == 0
        host = queue_of(other).host
        assert host is not None
        await eventually(lambda: host.asking.anybody_waits("sim"), "the other knows")
        late = ask(lead, 4)
        await eventually(lambda: waiting(lead) == 4, "behind them")
        shown, elsewhere = await lead.metrics(), await other.metrics()
        assert 'kvgate_queue_requests{band="0",model="sim"} 4' in shown
        assert "kvgate_queue_requests{" not in elsewhere
        replies = await asyncio.gather(first, *rest, late)
        assert [reply.status_code for reply in replies] == [200] * 5
        await eventually(lambda: len(other.lines) == 4, "all are settled")
        assert sum(line.queue_wait > 0 for line in other.lines) == 3
        assert 'kvgate_queue_held_seconds_count{band="0",model="sim",outcome="placed"} 3' in await other.metrics()
        await eventually(lambda: not host.asking.anybody_waits("sim"), "the other knows that nobody waits")


async def test_a_light_tenant_at_one_worker_is_served_fairly_beside_a_greedy_one_at_the_other(tokenizer, tmp_path):
    for greedy_at in (0, 1):
        (tmp_path / str(greedy_at)).mkdir(mode=0o700)
        async with hosted(tmp_path / str(greedy_at), tokenizer) as workers:
            greedy = [ask(workers[greedy_at], number, tenant="greedy") for number in range(16)]
            await eventually(lambda w=workers: waiting(w[0]) == 15, "the greedy one waits")
            light = ask(workers[1 - greedy_at], 99, tenant="light")
            assert (await light).status_code == 200
            assert sum(task.done() for task in greedy) <= 4
            assert [(await task).status_code for task in greedy] == [200] * 16


async def test_the_next_lead_serves_those_who_waited(tokenizer, tmp_path):
    async with hosted(tmp_path, tokenizer) as (lead, other):
        first = ask(other, 0, tokens=40)
        await eventually(lambda: queue_of(other).members()[0].load.requests == 1, "it is with the engine")
        rest = [ask(other, number) for number in range(1, 4)]
        await eventually(lambda: waiting(lead) == 3, "they wait at the lead")
        await lead.gateway.siblings.close()  # as when it ends
        lead.gateway.rooms.host.close()
        await eventually(lambda: waiting(other) == 3, "they wait here")
        await eventually(lambda: waiting(lead) == 0, "and not there")
        assert [reply.status_code for reply in await asyncio.gather(first, *rest)] == [200] * 4


async def test_one_that_starts_and_is_to_lead_refuses_nobody_who_waits(tokenizer, tmp_path, monkeypatch):
    """It does not know the engines at first, for as long as we like: they wait on where they are, and then at it."""
    may_learn, learn = asyncio.Event(), Reports.start

    async def late(reports: Reports) -> None:
        await may_learn.wait()
        await learn(reports)

    async with host_of(tmp_path, tokenizer) as (config, seats), running(config, seat=seats[1]) as other:
        await eventually(lambda: queue_of(other).members()[0].engine.up, "the engine is up")
        first = ask(other, 0, tokens=100)
        await eventually(lambda: queue_of(other).members()[0].load.requests == 1, "it is with the engine")
        rest = [ask(other, number) for number in range(1, 4)]
        await eventually(lambda: waiting(other) == 3, "they wait here")
        monkeypatch.setattr(Reports, "start", late)
        async with asyncio.TaskGroup() as tasks, AsyncExitStack() as stack:
            starting = tasks.create_task(stack.enter_async_context(running(config, seat=seats[0])))
            await eventually(lambda: other.gateway.siblings.lead == 0, "the one with the lowest number is there")
            newcomer = ask(other, 4)
            await eventually(lambda: waiting(other) == 4, "and is not asked", within=30)
            may_learn.set()
            lead = await starting
            await eventually(lambda: queue_of(other).host.asking.lead == 0, "it is asked")
            assert waiting(other) == 0
            replies = await asyncio.gather(first, *rest, newcomer)
            assert [reply.status_code for reply in replies] == [200] * 5
            assert waiting(lead) == 0


async def test_who_leaves_and_who_waits_too_long_are_gone_at_the_lead(tokenizer, tmp_path):
    async with hosted(tmp_path, tokenizer) as (lead, other):
        first = ask(other, 0, tokens=60)
        await eventually(lambda: queue_of(other).members()[0].load.requests == 1, "it is with the engine")
        leaver = ask(other, 1)
        await eventually(lambda: waiting(lead) == 1, "it waits at the lead")
        hurried = await other.client.post(PATH, json=asked(2), headers={"x-request-timeout": "0.05"})
        assert hurried.status_code == 429
        assert int(hurried.headers["retry-after"]) >= 1
        leaver.cancel()
        await eventually(lambda: waiting(lead) == 0, "its client has left")
        assert (await first).status_code == 200
        shown = await other.metrics()
        assert "kvgate_shed_total{" in shown
        assert "kvgate_shed_total{" not in await lead.metrics()


async def test_a_reload_of_the_lead_places_those_who_wait_and_newcomers_wait_in_its_new_queue(tokenizer, tmp_path):
    async with hosted(tmp_path, tokenizer) as (lead, other):
        first = ask(other, 0, tokens=60)
        await eventually(lambda: queue_of(other).members()[0].load.requests == 1, "it is with the engine")
        rest = [ask(other, number) for number in range(1, 4)]
        await eventually(lambda: waiting(lead) == 3, "they wait at the lead")
        before = queue_of(lead)
        config = lead.gateway.config
        [settings] = config.models
        queue = replace(QUEUE, max_requests=100)
        assert (await lead.reload(replace(config, models=(replace(settings, queue=queue),)))).status_code == 200
        assert queue_of(lead) is not before
        assert before.held.waiting == 3
        newcomer = ask(other, 4)
        await eventually(lambda: waiting(lead) == 1, "it waits in the new queue")
        replies = await asyncio.gather(first, *rest, newcomer)
        assert [reply.status_code for reply in replies] == [200] * 5
        assert before.held.waiting == 0


async def test_a_lead_without_a_queue_lets_all_through(tokenizer, tmp_path):
    """As while a reload has come to one worker and not to the other."""
    async with hosted(tmp_path, tokenizer) as (lead, other):
        first = ask(other, 0, tokens=60)
        await eventually(lambda: queue_of(other).members()[0].load.requests == 1, "it is with the engine")
        host = queue_of(lead).host
        assert host is not None
        host.serve({})
        replies = await asyncio.gather(first, *[ask(other, number) for number in range(1, 4)])
        assert [reply.status_code for reply in replies] == [200] * 4


async def test_when_all_endpoints_are_drained_those_who_wait_are_told_so_at_once(tokenizer, tmp_path):
    async with hosted(tmp_path, tokenizer) as (lead, other):
        first = ask(other, 0, tokens=60)
        await eventually(lambda: queue_of(other).members()[0].load.requests == 1, "it is with the engine")
        rest = [ask(other, number) for number in range(1, 4)]
        await eventually(lambda: waiting(lead) == 3, "they wait at the lead")
        name = queue_of(lead).members()[0].name
        reply = await lead.client.post(f"{lead.admin_url}/endpoints/{name}/drain")
        assert reply.status_code == 200
        assert [reply.status_code for reply in await asyncio.gather(*rest)] == [503] * 3
        assert (await first).status_code == 200


async def test_what_a_sibling_says_that_is_no_message_is_counted_and_changes_nothing(tokenizer, tmp_path):
    async with hosted(tmp_path, tokenizer) as (lead, other):
        for nonsense in (b"", b"\xff", b"[1]", b"\x92\xa8question\x01"):
            other.gateway.siblings.tell("queue", nonsense)
        assert (await other.client.post(PATH, json=asked(0))).status_code == 200
        other.gateway.siblings.tell("queue", msgspec.msgpack.encode(Waits("sim", True)))
        host = queue_of(lead).host
        assert host is not None
        await eventually(lambda: host.asking._waits, "the lead has heard all of it")
        assert 'kvgate_sibling_messages_refused_total{reason="message"} 4' in await lead.metrics()
        assert lead.gateway.siblings.live == {0, 1}
