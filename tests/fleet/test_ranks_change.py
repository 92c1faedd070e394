"""Engines whose number of ranks changes while requests run, and engines that only seem to have another one."""

from __future__ import annotations

import gc

import pytest

from gateway.fleet.ranks import ranks_of
from tests.fleet.conftest import hangs, is_watched, says
from tests.fleet.ranked import ranks, sources, text
from tests.support.fleet import engines_of, ready
from tests.support.ledgers import reserve
from tests.support.wait import eventually
from tests.support.wire import Connection


async def test_they_grow(served, model, seen):
    engine, fleet = await served(ranks=2, running=1)
    before = fleet.endpoints(model)
    engine.ranks = 4
    await eventually(lambda: len(fleet.endpoints(model)) == 4)
    assert fleet.endpoints(model)[:2] == before
    assert ranks(fleet, model) == [0, 1, 2, 3]
    new = fleet.endpoints(model)[2:]
    assert [endpoint.metrics.running for endpoint in new] == [3, 4]
    assert [endpoint.warmth for endpoint in new] == [1.0, 1.0]
    name = new[0].engine.name
    await eventually(lambda: ("source", f"{name}/3", None) in seen.told)
    assert not [told for told in seen.told if told[0] == "dropped" and told[1] != name]


async def test_they_shrink_and_requests_there_end_in_peace(served, model, seen):
    engine, fleet = await served(ranks=3, endpoint={"api_key": "k"})
    *kept, last = fleet.endpoints(model)
    reservation = reserve(last.load, 10, 20)
    engine.ranks = 2
    await eventually(lambda: len(fleet.endpoints(model)) == 2)
    assert list(fleet.endpoints(model)) == kept
    assert [told for told in seen.told if told[0] == "dropped"][1:] == [("dropped", last.name)]
    assert seen.gone[-1] == last.name
    # The request was placed, and is not yet sent.
    assert last.api_key == "k"
    assert fleet.bootstrap_port(last) == 8998
    fleet.report_head(last, 0.01)
    reservation.first_token()
    reservation.set_generated(5)
    # Nobody has its slot meanwhile, though the index is done with it.
    fleet.release_slot(last.slot)
    engine.ranks = 3
    await eventually(lambda: len(fleet.endpoints(model)) == 3)
    *_, again = fleet.endpoints(model)
    assert again.name == last.name
    assert again.slot != last.slot
    assert again.load is not last.load
    reservation.settle()
    assert (last.load.requests, last.load.prefill_tokens, last.load.kv_tokens) == (0, 0, 0)
    engine.ranks = 4
    await eventually(lambda: len(fleet.endpoints(model)) == 4)
    assert fleet.endpoints(model)[3].slot == last.slot


async def test_what_requests_tell_of_a_rank_that_is_gone_is_told_of_its_engine(served, model):
    engine, fleet = await served(ranks=2)
    last = fleet.endpoints(model)[1]
    engine.ranks = 1
    await eventually(lambda: ranks(fleet, model) == [None])
    fleet.report_refused(last)
    assert last.engine.down_reason == "refused"
    await eventually(lambda: last.engine.up)


async def test_a_scale_down_is_told_by_the_event_sources_alone(served, model, monkeypatch):
    monkeypatch.setattr("gateway.fleet.inspector.REFRESH", 0.1)
    engine, fleet = await served(ranks=4, running=1, kv_sources=sources(5557, 5558, 5559, 5560))
    assert ranks(fleet, model) == [0, 1, 2, 3]
    engine.kv_sources = sources(5557, 5558)
    await eventually(lambda: ranks(fleet, model) == [0, 1])
    engine.kv_sources = sources(5557)
    await eventually(lambda: ranks(fleet, model) == [None])
    # The labels that stayed behind are nobody's.
    await eventually(lambda: fleet.endpoints(model)[0].metrics.running == 1)


async def test_cores_that_are_gone_are_no_peers_of_those_that_are_left(served, model):
    engine, fleet = await served(ranks=3)
    (peers,) = fleet._registry._peers.values()
    gc.collect()
    assert peers.count == 3
    engine.ranks = 2
    await eventually(lambda: len(fleet.endpoints(model)) == 2)
    gc.collect()
    assert peers.count == 2


async def test_a_partial_scrape_changes_nothing(served, model, seen):
    engine, fleet = await served(ranks=3)
    before = fleet.endpoints(model)
    whole = engine.metrics().encode()
    part = b"\n".join(line for line in whole.splitlines() if b'engine="2"' not in line) + b"\n"
    assert len(part) < len(whole)
    engine.faults["/metrics"] = says(part, whole, whole, part, whole)
    asked = engine.count("/metrics")
    await eventually(lambda: engine.count("/metrics") > asked + 6)
    assert fleet.endpoints(model) == before
    assert [told[1] for told in seen.told if told[0] == "dropped"] == [before[0].engine.name]


async def test_a_partial_scrape_that_is_not_followed_by_another_changes_nothing(served, model):
    engine, fleet = await served(ranks=2)
    before = fleet.endpoints(model)
    seen = []

    async def one_of_two(connection: Connection, head: bytes) -> None:
        seen.append(1)
        said = says("", status=503) if len(seen) % 2 == 0 else says(text("0"))
        await said(connection, head)

    engine.faults["/metrics"] = one_of_two
    await eventually(lambda: len(seen) > 5)
    assert fleet.endpoints(model) == before


async def test_event_sources_that_fail_are_no_evidence(served, model, monkeypatch):
    monkeypatch.setattr("gateway.fleet.inspector.RETRY", 0.05)
    engine, fleet = await served(ranks=4, kv_sources=sources(5557, 5558))
    assert ranks(fleet, model) == [0, 1]
    engine.faults["/kv_event_sources"] = says("", status=503)
    # Other labels ask for them, and without them they decide nothing: they had been overruled.
    engine.ranks = 3
    asked = engine.count("/kv_event_sources"), engine.count("/metrics")
    await eventually(lambda: engine.count("/kv_event_sources") > asked[0] and engine.count("/metrics") > asked[1] + 3)
    assert ranks(fleet, model) == [0, 1]
    engine.faults.clear()
    engine.kv_sources = sources(5557, 5558, 5559)
    engine.started = 2.0
    await eventually(lambda: ranks(fleet, model) == [0, 1, 2])


async def test_where_the_event_sources_never_tell_the_labels_do(served, model):
    engine, fleet = await served(ranks=2, faults={"/kv_event_sources": says("", status=503)})
    assert ranks(fleet, model) == [0, 1]
    engine.ranks = 3
    await eventually(lambda: ranks(fleet, model) == [0, 1, 2])


async def test_an_engine_that_is_down_keeps_its_endpoints(served, model):
    engine, fleet = await served(ranks=2)
    before = fleet.endpoints(model)
    await engine.stop()
    await eventually(lambda: not before[0].engine.up)
    await eventually(lambda: before[0].engine.down_reason == "refused")
    assert fleet.endpoints(model) == before
    assert ready(fleet, model) == 0
    await engine.start()
    await eventually(lambda: before[0].engine.up)
    assert fleet.endpoints(model) == before


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2), (4, 2)])
async def test_a_restart_with_another_number(served, model, seen, before, after):
    engine, fleet = await served(ranks=before, kv_sources=sources(*range(5557, 5557 + before)))
    await engine.stop()
    await eventually(lambda: ready(fleet, model) == 0)
    engine.ranks, engine.started = after, 9.0
    engine.kv_sources = sources(*range(6557, 6557 + after))
    seen.peek = lambda: len(fleet.endpoints(model))
    await engine.start()
    await eventually(lambda: ready(fleet, model) == after)
    assert seen.peeked[-1] == after, "before the first request could go to a rank that is not there"
    assert ranks(fleet, model) == list(ranks_of(after))
    told = {told[1]: told[2] for told in seen.told if told[0] == "source"}
    assert [told[endpoint.name].address for endpoint in fleet.endpoints(model)] == [
        f"tcp://127.0.0.1:{6557 + rank}" for rank in range(after)
    ]
    # It came back: also its new ranks are brought to their share slowly.
    assert len({endpoint.warmth for endpoint in fleet.endpoints(model)}) == 1


async def test_an_engine_that_goes_while_it_is_asked_for_its_ranks_is_not_heard_again(served, model, seen):
    engine, fleet = await served(ranks=2)
    asked = []

    async def once(connection: Connection, head: bytes) -> None:
        asked.append(1)
        if len(asked) > 1:  # the one that is to confirm another number
            await hangs(connection, head)
        else:
            await says(engine.metrics())(connection, head)

    engine.ranks = 3
    engine.faults["/metrics"] = once
    await eventually(lambda: len(asked) == 2)
    name = engines_of(fleet)[0].name
    change = await fleet.prepare([])
    fleet.apply(change)
    seen.scrapes.clear()
    await eventually(lambda: not is_watched(name))
    assert (engines_of(fleet), fleet.endpoints(model)) == ([], ())
    # A stray scrape would bring its series back.
    assert (seen.gone[-1], seen.scrapes) == (name, [])
