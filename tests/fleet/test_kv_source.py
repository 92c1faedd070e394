from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.kv_source import KvSource, configured_source, connecting_source, reported_source
from gateway.fleet.settings import KvEventsSettings

HOST = "10.0.0.7"


def entry(**changes):
    """As vLLM 0.32 reports a rank."""
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://*:5557",
        "replay_endpoint": "tcp://*:5657",
        "buffer_steps": 10000,
        "hwm": 100000,
        "max_queue_size": 100000,
        "topic": "kv@pod",
    } | changes


def test_an_address_that_binds_becomes_the_engines_host():
    assert reported_source({"0": entry()}, None, HOST) == KvSource(
        "tcp://10.0.0.7:5557", "tcp://10.0.0.7:5657", "kv@pod", rank=0
    )
    for bound in ("tcp://0.0.0.0:5557", "tcp://[::]:5557", "tcp://:::5557"):
        found = reported_source({"0": entry(endpoint=bound)}, None, "fd00::1")
        assert found is not None
        assert found.address == "tcp://[fd00::1]:5557"
    elsewhere = reported_source({"0": entry(endpoint="tcp://10.0.0.8:40001", replay_endpoint=None)}, None, HOST)
    assert elsewhere == KvSource("tcp://10.0.0.8:40001", None, "kv@pod", rank=0)


def test_each_rank_has_its_own_and_ranks_are_counted():
    sources = {"5": entry(endpoint="tcp://*:5562"), "4": entry(endpoint="tcp://*:5561")}
    assert [getattr(reported_source(sources, rank, HOST), "address", None) for rank in (0, 1, 2)] == [
        "tcp://10.0.0.7:5561",
        "tcp://10.0.0.7:5562",
        None,
    ]
    # Events of two caches cannot be those of one endpoint.
    assert reported_source(sources, None, HOST) is None


@pytest.mark.parametrize(
    "sources",
    [
        {},
        {"0": None},
        {"0": entry(enable_kv_cache_events=False)},
        {"0": entry(publisher="null")},
        {"0": entry(endpoint=None)},
        {"0": entry(endpoint=5557)},
        {"0": entry(endpoint="inproc://kv")},
        {"0": entry(endpoint="tcp://*:0")},
        {"0": entry(endpoint="tcp://*:x")},
        {"0": entry(endpoint="tcp://*")},
        {"0": entry(endpoint="tcp://*:99999")},
        {"0": entry(endpoint="tcp://" + "a" * 1000 + ":1")},
        {"zero": entry()},
        {"9" * 5000: entry()},
    ],
)
def test_what_cannot_be_subscribed_to_is_none(sources):
    assert reported_source(sources, 0, HOST) is None
    assert reported_source(sources, None, HOST) is None


def test_a_topic_of_a_wrong_type_is_none_at_all():
    found = reported_source({"0": entry(topic=7)}, None, HOST)
    assert found is not None
    assert found.topic == ""


def test_a_configured_topic_wins():
    found = reported_source({"0": entry()}, None, HOST, "mine")
    assert found is not None
    assert found.topic == "mine"


def test_configured_addresses_are_rank_zeros():
    settings = KvEventsSettings(endpoint="tcp://10.0.0.2:5557", replay="tcp://*:5657", topic="t")
    assert configured_source(settings, None, HOST, {}) == KvSource("tcp://10.0.0.2:5557", "tcp://10.0.0.7:5657", "t")
    assert configured_source(settings, 3, HOST, {}) == KvSource("tcp://10.0.0.2:5560", "tcp://10.0.0.7:5660", "t")


def test_the_engine_tells_which_of_its_ranks_it_is():
    """Behind an external balancer each rank has its own URL, and none a rank; its events bear the engine's number."""
    settings = KvEventsSettings(endpoint="tcp://10.0.0.2:5557")
    told = [
        configured_source(settings, rank, HOST, sources)
        for rank, sources in [
            (None, {"3": entry()}),
            (1, {"5": {}, "4": {}}),
            (None, {"0": {}, "1": {}}),
            (2, {"0": {}}),
        ]
    ]
    assert [source and source.rank for source in told] == [3, 5, None, None]
    assert [getattr(reported_source({"3": entry()}, rank, HOST), "rank", None) for rank in (None, 0, 1)] == [3, 3, None]


def test_ipc_has_no_ranks():
    settings = KvEventsSettings(endpoint="ipc:///run/kv")
    assert configured_source(settings, 0, HOST, {}) == KvSource("ipc:///run/kv")
    assert configured_source(settings, 1, HOST, {}) is None


@pytest.mark.parametrize("settings", [KvEventsSettings(), KvEventsSettings(enabled=False, endpoint="tcp://h:1")])
def test_nothing_configured(settings):
    assert configured_source(settings, None, HOST, {}) is None


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["tcp://*:1", "tcp://", "ipc://"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["0", "1", "endpoint", "publisher", "topic"]) | st.text(max_size=3), inner)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["0", "1", "x"]), JSON), st.none() | st.integers(0, 3))
def test_no_report_raises(sources, rank):
    found = reported_source(sources, rank, HOST)
    assert found is None or found.address.startswith(("tcp://", "ipc://"))


CONNECTS = KvEventsSettings(connects=True)


def test_an_engine_that_connects_has_a_replay_socket_of_its_own():
    assert connecting_source(CONNECTS, None, HOST, "t", {}) == KvSource(None, None, "t")
    assert connecting_source(CONNECTS, None, HOST, "t", {"0": entry()}) == KvSource(
        None, "tcp://10.0.0.7:5657", "t", rank=0
    )
    named = KvEventsSettings(connects=True, replay="tcp://*:6000")
    assert connecting_source(named, 2, HOST, "t", {}) == KvSource(None, "tcp://10.0.0.7:6002", "t", offset=2)


def test_ranks_connect_to_the_ports_of_their_names():
    """vLLM adds the rank among all nodes' ranks: an engine of a hybrid balancer begins above 0."""
    sources = {"5": entry(), "4": entry()}
    offsets = [getattr(connecting_source(CONNECTS, rank, HOST, "t", sources), "offset", None) for rank in (0, 1, None)]
    assert offsets == [4, 5, None]
    one = connecting_source(CONNECTS, None, HOST, "t", {"3": entry()})
    assert one == KvSource(None, "tcp://10.0.0.7:5657", "t", offset=3, rank=3)


@given(st.dictionaries(st.text("0123456789", min_size=1), st.one_of(st.none(), st.integers(), st.just({}))))
def test_what_an_engine_that_connects_tells_is_never_an_error(sources):
    found = connecting_source(CONNECTS, 0, HOST, "t", sources)
    assert found is not None
    assert 0 <= found.offset <= 1024
