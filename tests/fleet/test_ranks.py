"""Data-parallel ranks: how many an engine has, and that the fleet has as many endpoints."""

from __future__ import annotations

import pytest

from gateway.errors import ConfigError
from gateway.fleet.kv_source import KvSource
from gateway.fleet.ranks import rank_count, ranks_of
from gateway.fleet.scrape import read
from gateway.fleet.settings import MAX_RANKS, EndpointSettings
from gateway.framework import Role
from gateway.framework.fleet import Model
from tests.fleet.conftest import says
from tests.fleet.ranked import ranks, sources, text
from tests.support.fleet import engines_of, ready
from tests.support.wait import eventually

UNLABELLED = b'vllm:num_requests_running{model_name="m"} 1\n'


@pytest.mark.parametrize(
    ("scraped", "sources", "expected"),
    [
        (text("0"), {}, 1),
        (text("0", "1", "2"), {}, 3),
        (text("4", "5"), {}, 2),  # a node behind a hybrid load balancer
        (text("3"), {"3": {}}, 1),  # one behind an external one
        (UNLABELLED, {}, 1),
        (UNLABELLED, {"0": {}, "1": {}}, 2),
        (text("0", "1", "2", "3"), {"0": {}, "1": {}}, 2),  # scaled down: vLLM's labels stay
        (text("0", "1"), {"error": "no", "-1": {}, "": {}}, 2),
        (text("0"), {str(rank): {} for rank in range(5000)}, MAX_RANKS),
    ],
)
def test_what_an_engine_says_of_its_ranks(scraped, sources, expected):
    scrape = read(scraped)
    assert scrape is not None
    assert rank_count(scrape, sources) == expected


def test_a_single_rank_bears_no_number():
    assert list(ranks_of(1)) == [None]
    assert list(ranks_of(3)) == [0, 1, 2]


async def test_they_are_known_before_the_start_returns(served, model, seen):
    engine, fleet = await served(
        ranks=2,
        running=3,
        kv_sources=sources(5557, 5558),
        endpoint={
            "name": "x",
            "role": "prefill",
            "labels": {"zone": "a"},
            "api_key": "k",
            "kv_capacity_tokens": 77,
            "bootstrap_port": 9000,
        },
    )
    first, second = fleet.endpoints(model)
    assert [(e.name, e.rank) for e in (first, second)] == [("x/0", 0), ("x/1", 1)]
    assert first.engine is second.engine
    assert first.load is not second.load
    assert first.cost is not second.cost
    assert first.slot != second.slot
    for endpoint, running in ((first, 3), (second, 4)):
        assert (endpoint.role, endpoint.labels) == (Role.PREFILL, {"zone": "a"})
        assert (endpoint.metrics.running, endpoint.metrics.kv_capacity) == (running, 77)
        assert (endpoint.api_key, fleet.bootstrap_port(endpoint)) == ("k", 9000)
        assert fleet.served_name(endpoint, model) == "tiny"
    assert ready(fleet, model) == 2
    assert len(engines_of(fleet)) == 1
    assert engine.count("/metrics") == 1
    # The one endpoint that it was taken for is gone, in the order that listeners are promised.
    assert seen.told == [
        ("added", "x"),
        ("added", "x/0"),
        ("added", "x/1"),
        ("dropped", "x"),
        ("source", "x/0", KvSource("tcp://127.0.0.1:5557", rank=0)),
        ("source", "x/1", KvSource("tcp://127.0.0.1:5558", rank=1)),
    ]
    assert seen.gone == ["x"]


async def test_a_single_rank_is_an_endpoint_without_one(served, model, seen):
    _, fleet = await served(first_rank=3, kv_sources=sources(5560, first=3))
    (endpoint,) = fleet.endpoints(model)
    assert endpoint.rank is None
    assert seen.told == [("added", endpoint.name), ("source", endpoint.name, KvSource("tcp://127.0.0.1:5560", rank=3))]


async def test_labels_of_a_node_count_from_its_first_rank_and_the_header_from_0(served, model, seen):
    _, fleet = await served(ranks=2, first_rank=4, running=1, kv_sources=sources(5561, 5562, first=4))
    assert ranks(fleet, model) == [0, 1]
    assert [endpoint.metrics.running for endpoint in fleet.endpoints(model)] == [1, 2]
    assert [told[2].address for told in seen.told if told[0] == "source"] == [
        "tcp://127.0.0.1:5561",
        "tcp://127.0.0.1:5562",
    ]


async def test_without_labels_the_event_sources_tell(served, model):
    engine, fleet = await served(kv_sources=sources(5557, 5558, 5559), faults={"/metrics": says(UNLABELLED)})
    assert ranks(fleet, model) == [0, 1, 2]
    # Whose the only line is cannot be told.
    assert [endpoint.metrics.at for endpoint in fleet.endpoints(model)] == [None] * 3
    assert engine.count("/kv_event_sources") == 1


async def test_two_models_on_one_engine_share_its_cores(engines, fleets, seen):
    engine = await engines(ranks=2, kv_sources=sources(5557, 5558))
    one, other, third = Model("tiny"), Model("other"), Model("third")
    first_one = (one, [EndpointSettings(url=engine.url, name="x", api_key="k")])
    then_other = (other, [EndpointSettings(url=engine.url, role="decode", kv_capacity_tokens=5)])
    at_last = (third, [EndpointSettings(url=engine.url)])
    fleet = await fleets(first_one, then_other)
    assert [e.name for e in fleet.endpoints(one)] == ["x/0", "x/1"]
    assert [e.name for e in fleet.endpoints(other)] == ["x@other/0", "x@other/1"]
    assert [endpoint.api_key for endpoint in fleet.endpoints(other)] == ["k", "k"]
    for first, second in zip(fleet.endpoints(one), fleet.endpoints(other), strict=True):
        assert first.load is second.load
        assert first.cost is second.cost
        assert (first.metrics.kv_capacity, second.metrics.kv_capacity) == (1000, 5)
    assert len({e.slot for model in (one, other) for e in fleet.endpoints(model)}) == 4
    engine.ranks, engine.kv_sources = 3, sources(5557, 5558, 5559)
    await eventually(lambda: ranks(fleet, one) == [0, 1, 2])
    assert ranks(fleet, other) == [0, 1, 2]
    assert fleet.endpoints(one)[2].load is fleet.endpoints(other)[2].load
    # One that joins late stands on all of them, and knows what the others know.
    fleet.apply(await fleet.prepare([first_one, then_other, at_last]))
    joined = fleet.endpoints(third)
    assert [(e.name, e.rank, e.metrics.kv_capacity) for e in joined] == [(f"x@third/{r}", r, 1000) for r in range(3)]
    # One that leaves takes its own, and does not come back with another number.
    fleet.apply(await fleet.prepare([then_other, at_last]))
    engine.ranks, engine.kv_sources = 1, sources(5557)
    await eventually(lambda: ranks(fleet, other) == [None])
    assert (ranks(fleet, one), ranks(fleet, third)) == ([], [None])
    assert [endpoint.name for endpoint in fleet.endpoints(other)] == ["x@other"]


async def test_what_is_configured_wins_and_a_mismatch_is_told(served, model, caplog):
    engine, fleet = await served(ranks=2, endpoint={"ranks": 3})
    asked = engine.count("/metrics")
    await eventually(lambda: engine.count("/metrics") > asked + 2)
    assert ranks(fleet, model) == [0, 1, 2]
    assert caplog.text.count("it has 2 data-parallel ranks, the configuration says 3") == 1


async def test_one_rank_by_configuration_leaves_the_choice_to_the_engine(served, model):
    _, fleet = await served(ranks=2, running=1, endpoint={"ranks": 1})
    (endpoint,) = fleet.endpoints(model)
    assert endpoint.rank is None
    assert endpoint.metrics.running == 3


async def test_ranks_that_would_have_anothers_names_are_refused(engines, fleets, model, caplog):
    first, second = await engines(ranks=2), await engines()
    fleet = await fleets(
        (model, [EndpointSettings(url=first.url, name="x"), EndpointSettings(url=second.url, name="x/1")])
    )
    assert [endpoint.name for endpoint in fleet.endpoints(model)] == ["x", "x/1"]
    assert ready(fleet, model) == 2
    asked = first.count("/metrics")
    await eventually(lambda: first.count("/metrics") > asked + 2)
    assert caplog.text.count("both have the name x/1") == 1
    # As long as both of its ranks stand behind the one, their load is its load.
    assert fleet.endpoints(model)[0].metrics.kv_capacity == 2000


async def test_an_entry_that_is_refused_leaves_nothing_behind(served, model):
    engine, fleet = await served(ranks=2)
    before = fleet.endpoints(model)
    known = EndpointSettings(url=engine.url)
    with pytest.raises(ConfigError, match="both have the name"):
        await fleet.prepare(
            [(model, [known, EndpointSettings(url="http://127.0.0.1:1", name=f"127.0.0.1:{engine.port}/1")])]
        )
    assert (len(engines_of(fleet)), fleet.endpoints(model)) == (1, before)
    fleet.apply(await fleet.prepare([(model, [known, EndpointSettings(url="http://127.0.0.1:1", name="y")])]))
    assert [endpoint.name for endpoint in fleet.endpoints(model)] == [*(endpoint.name for endpoint in before), "y"]


async def test_an_engine_never_seen_is_one_endpoint_that_is_down(engines, fleets, model, seen):
    engine = await engines(ranks=3)
    await engine.stop()
    fleet = await fleets((model, [EndpointSettings(url=engine.url)]))
    (endpoint,) = fleet.endpoints(model)
    assert (endpoint.rank, endpoint.engine.up) == (None, False)
    seen.peek = lambda: ranks(fleet, model)
    await engine.start()
    await eventually(lambda: ready(fleet, model) == 3)
    assert seen.peeked[-1] == [0, 1, 2], "they were there when it was called up"


async def test_an_engine_that_sleeps_is_asked_when_it_wakes(served, model):
    engine, fleet = await served(ranks=2, awake=False)
    assert ranks(fleet, model) == [None]
    engine.awake = True
    await eventually(lambda: ready(fleet, model) == 2)
