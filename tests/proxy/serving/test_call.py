from __future__ import annotations

from array import array
from math import inf
from random import Random
from types import SimpleNamespace

import pytest

from gateway.api.body import JsonBody
from gateway.api.routes import ROUTES
from gateway.api.settings import PassThroughSettings
from gateway.core.clock import ManualClock
from gateway.core.observer import NULL_OBSERVER
from gateway.core.prompt import KnownPrefix, PrefixedIds, Prompt
from gateway.fleet.fleet import Fleet
from gateway.fleet.settings import EndpointSettings, FleetSettings
from gateway.framework import Kind
from gateway.framework.fleet import Model
from gateway.proxy.serving.call import Call, IncomingRequest
from gateway.proxy.serving.tokenized_request import TokenizedRequest

IDS = array("I", range(64))
BODY = JsonBody(b'{"model": "m", "prompt": "a long one"}', PassThroughSettings())
ROUTE = ROUTES["/v1/completions"]


def call(prompt: Prompt) -> Call:
    model = Model("m")
    request = TokenizedRequest("r", model, Kind.COMPLETION, 0.0, token_ids=IDS, prompt_tokens=64)
    runtime = SimpleNamespace(model=model)
    return Call.of(
        IncomingRequest("r", ROUTE, [("a", "b")], BODY, runtime, request, 2, "", inf), prompt, SimpleNamespace()
    )


def test_it_does_not_change() -> None:
    one = call(Prompt(IDS, 64, exact=True, own=IDS))
    assert (one.id, one.sequences, one.own_tokens) == ("r", 2, 64)
    with pytest.raises(AttributeError):
        one.sequences = 3


def test_once_its_answer_has_begun_the_counts_are_left_and_the_texts_are_not() -> None:
    one = call(Prompt(IDS, 64, exact=True, own=IDS))
    one.request.ids = PrefixedIds(KnownPrefix(64), [IDS.tobytes()], array("I"))
    del one.request.token_ids
    light = one.without_prompt()
    assert light.request.ids is None
    assert (light.body.fields, light.headers, light.prompt.own, len(light.prompt.ids)) == ({}, (), None, 0)
    assert (light.prompt.count, light.own_tokens, light.keys) == (64, 64, one.keys)
    assert len(light.request.token_ids) == 0
    assert light.request.prompt_tokens == 64


def test_ids_are_exact_where_the_engine_makes_the_same() -> None:
    entries = [EndpointSettings(f"http://e{number}:1") for number in (1, 2)]
    model = Model("m")
    fleet = Fleet([(model, entries)], FleetSettings(), ManualClock(), NULL_OBSERVER, Random(1))
    first, second = fleet.endpoints(model)
    one = call(Prompt(IDS, 64, exact=True, own=IDS, differing=frozenset({second.name})))
    assert [one.exact_on(endpoint) for endpoint in (first, second)] == [True, False]
    assert not call(Prompt(IDS, 64, exact=False)).exact_on(first)
