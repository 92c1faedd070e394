"""One list a model, whatever is found: what the fleet would refuse is never in it."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import ManualClock
from gateway.core.observer import NULL_OBSERVER
from gateway.discovery.merge import Offer, merge
from gateway.errors import ConfigError
from gateway.fleet.address import Location
from gateway.fleet.fleet import Fleet
from gateway.fleet.settings import EndpointSettings, FleetSettings, KvEventsSettings, TlsSettings
from gateway.framework.fleet import Model
from tests.support.examples import examples

A, B, C = "http://a:1", "http://b:1", "http://c:1"


def found(*endpoints: EndpointSettings, model: str = "m", place: str = "file x") -> Offer:
    return Offer(model, place, endpoints)


def test_the_first_that_names_a_url_counts_as_a_whole() -> None:
    own = EndpointSettings(A, name="own")
    first, second = EndpointSettings("HTTP://B:1/", role="prefill"), EndpointSettings(B, labels={"zone": "a"})
    offers = [found(EndpointSettings(A, role="decode"), first), found(second, EndpointSettings(C))]
    merged = merge([("m", [own])], offers, listens=False)
    assert merged.endpoints == {"m": (own, first, EndpointSettings(C))}
    assert merged.notes == []


def test_a_name_belongs_to_the_first_engine_that_has_it() -> None:
    twin, other = EndpointSettings(B, name="x"), EndpointSettings(C, name="b:1")
    merged = merge([("m", [EndpointSettings(A, name="x")]), ("n", [])], [found(twin, other, model="n")], listens=False)
    assert merged.endpoints["n"] == (EndpointSettings(B), EndpointSettings(C))
    assert merged.notes == [
        "model n: file x: http://b:1 is called b:1: another engine has its name 'x'",
        "model n: file x: http://c:1 is called c:1: another engine has its name 'b:1'",
    ]
    ranked = EndpointSettings(A, name="r", ranks=2)
    merged = merge([("m", [ranked])], [found(EndpointSettings(B, name="r/1"))], listens=False)
    assert merged.endpoints["m"][1].name is None
    secure = EndpointSettings("https://a:1")
    merged = merge([("m", [EndpointSettings(A)])], [found(secure)], listens=False)
    assert merged.notes == ["model m: file x: https://a:1 is left out: another engine has its name 'a:1'"]


def test_a_running_engines_ranks_have_their_names_as_long_as_it_stays() -> None:
    ranked = {"r/0": Location.of(A), "r/1": Location.of(A)}
    offers = [found(EndpointSettings(B, name="r/1"), EndpointSettings(A, name="r"))]
    merged = merge([("m", [])], offers, listens=False, ranked=ranked)
    assert merged.endpoints["m"] == (EndpointSettings(B), EndpointSettings(A, name="r"))
    assert merged.notes == ["model m: file x: http://b:1 is called b:1: another engine has its name 'r/1'"]
    alone = [found(EndpointSettings(B, name="r/1"))]
    assert merge([("m", [])], alone, listens=False, ranked=ranked).notes == []


def test_models_that_share_an_engine_agree() -> None:
    url, tls = "https://a:1", TlsSettings(verify=False)
    models = [("m", [EndpointSettings(url, ranks=2)]), ("n", []), ("o", [])]
    offers = [
        found(EndpointSettings(url), model="n"),
        found(EndpointSettings(url, ranks=2, tls=tls), model="n", place="dns y"),
        found(EndpointSettings(url, ranks=2, tls=TlsSettings()), model="o"),
    ]
    merged = merge(models, offers, listens=False)
    assert [len(merged.endpoints[model]) for model in "mno"] == [1, 1, 0]
    assert merged.notes == [
        "model n: file x: https://a:1 is left out: its ranks are None, and with another model 2",
        "model o: file x: https://a:1 is left out: it has another tls than with another model",
    ]


def test_engines_that_connect_have_a_topic_each_and_somebody_who_listens() -> None:
    one = EndpointSettings(A, kv_events=KvEventsSettings(connects=True, topic="t"))
    other = EndpointSettings(B, kv_events=KvEventsSettings(connects=True, topic="t"))
    merged = merge([("m", [])], [found(one, other)], listens=True)
    assert merged.endpoints["m"] == (one,)
    assert merged.notes == ["model m: file x: http://b:1 is left out: another engine has its topic 't'"]
    assert len(merge([("m", [])], [found(one, other)], listens=False).notes) == 2


ENDPOINTS = st.builds(
    EndpointSettings,
    url=st.sampled_from([A, B, C, "https://a:1", "http://A:1/", "https://c"]),
    name=st.sampled_from([None, "x", "x/0", "a:1", "b:1"]),
    role=st.sampled_from(["both", "prefill"]),
    ranks=st.sampled_from([None, 1, 2]),
)
MODELS = ("m", "n")
OFFERS = st.lists(
    st.builds(Offer, st.sampled_from(MODELS), st.just("file x"), st.lists(ENDPOINTS, max_size=5)), max_size=4
)


def fleet(models: dict[str, tuple[EndpointSettings, ...]]) -> Fleet:
    wanted = [(Model(name), endpoints) for name, endpoints in models.items()]
    return Fleet(wanted, FleetSettings(), ManualClock(), NULL_OBSERVER, random.Random(0))


@examples(300)
@given(static=st.lists(ENDPOINTS, max_size=3), offers=OFFERS)
def test_a_fleet_takes_whatever_comes_of_it(static: list[EndpointSettings], offers: list[Offer]) -> None:
    try:
        fleet({"m": tuple(static), "n": ()})
    except ConfigError:
        return  # such a configuration is refused before anything is found
    merged = merge([("m", static), ("n", [])], offers, listens=False)
    made = fleet(dict(merged.endpoints))
    assert merged.endpoints["m"][: len(static)] == tuple(static)
    for model in MODELS:
        here = [Location.of(one.url) for one in merged.endpoints[model]]
        assert len(set(here)) == len(here)
        asked = {Location.of(one.url) for offer in offers if offer.model == model for one in offer.endpoints}
        lost = asked - set(here)
        assert all(any(f"{location.url} is left out" in note for note in merged.notes) for location in lost)
        assert len(made.by_model.get(model, ())) == sum(one.ranks or 1 for one in merged.endpoints[model])
    names = [one.name for endpoints in made.by_model.values() for one in endpoints]
    assert len(set(names)) == len(names)
    again = merge([("m", static), ("n", [])], offers, listens=False)
    assert again == merged
