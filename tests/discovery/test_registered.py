"""Endpoints that register themselves, for a time or until they are taken back."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.clock import ManualClock
from gateway.discovery.registered import Registered, of_body
from gateway.errors import ConfigError
from gateway.fleet.settings import EndpointSettings

A = "http://a:1"


def test_it_is_kept_renewed_and_taken_back() -> None:
    registered = Registered(ManualClock(), lambda: None)
    one, before = registered.put({"url": A, "role": "decode", "name": "one"}, ["m"])
    assert (one.model, one.name, before) == ("m", "one", None)
    two, before = registered.put({"url": "HTTP://A:1/", "role": "decode", "name": "one", "model": "m"}, ["m"])
    assert before is one
    assert registered.put({"url": "HTTP://A:1/", "role": "decode", "name": "one"}, ["m"])[1] is two
    assert registered.put({"url": A, "model": "n"}, ["m", "n"])[0].name == "a:1"
    assert registered.of("m") == [EndpointSettings("HTTP://A:1/", "decode", name="one")]
    registered.keep(["m"])
    assert registered.of("n") == []
    assert [gone.name for gone in registered.remove("one")] == ["one"]
    assert registered.remove("one") == []


def test_there_is_room_for_so_many(monkeypatch) -> None:
    monkeypatch.setattr("gateway.discovery.registered.MOST_ENDPOINTS", 2)
    registered = Registered(ManualClock(), lambda: None)
    registered.put({"url": A}, ["m"])
    registered.put({"url": "http://b:1"}, ["m"])
    with pytest.raises(ConfigError, match="no room for more"):
        registered.put({"url": "http://c:1"}, ["m"])
    registered.put({"url": A, "role": "decode"}, ["m"])
    assert [one.name for one in registered.all()] == ["a:1", "b:1"]


def test_its_time_ends() -> None:
    clock = ManualClock()
    registered = Registered(clock, lambda: None)
    assert registered.until_next() is None
    registered.put({"url": A, "ttl": 10}, ["m"])
    registered.put({"url": "http://b:1"}, ["m"])
    registered.put({"url": "http://c:1", "ttl": 20.5}, ["m"])
    assert registered.until_next() == 10.0
    clock.now = 9.0
    assert registered.expire() == []
    registered.put({"url": A, "ttl": 10}, ["m"])  # it is alive
    clock.now = 18.0
    assert registered.expire() == []
    clock.now = 19.0
    assert [one.name for one in registered.expire()] == ["a:1"]
    assert registered.until_next() == 1.5
    clock.now = 100.0
    assert [one.name for one in registered.expire()] == ["c:1"]
    assert [one.name for one in registered.all()] == ["b:1"]
    assert registered.left(registered.all()[0]) is None


def test_what_was_replaced_is_not_discarded_and_is_there_again_when_the_other_one_is() -> None:
    registered = Registered(ManualClock(), lambda: None)
    first, none = registered.put({"url": A}, ["m"])
    second, before = registered.put({"url": A, "role": "decode"}, ["m"])
    registered.discard(first, none)
    assert registered.all() == [second]
    registered.discard(second, before)
    assert registered.all() == [first]
    registered.discard(first, none)
    assert registered.all() == []


@pytest.mark.parametrize(
    ("body", "models", "error"),
    [
        ({}, ["m"], "url: this key is required"),
        ({"url": A}, ["m", "n"], "model: this key is required"),
        ({"url": A, "model": "x"}, ["m"], "model: there is no model 'x'"),
        ({"url": A, "ttl": 0}, ["m"], "ttl must be in 1..86400 seconds"),
        ({"url": A, "ttl": "1"}, ["m"], "ttl: expected a number, found the string"),
        ({"url": A, "rolle": 1}, ["m"], "rolle: unknown key"),
        ({"url": "a:1"}, ["m"], "url: 'a:1' must be http://HOST:PORT"),
    ],
)
def test_what_is_wrong_registers_nothing(body: dict[str, Any], models: list[str], error: str) -> None:
    registered = Registered(ManualClock(), lambda: None)
    with pytest.raises(ConfigError) as raised:
        registered.put(body, models)
    assert error in raised.value.message
    assert registered.all() == []


def test_a_body_is_an_object() -> None:
    with pytest.raises(ConfigError, match="must be a JSON object"):
        of_body([])
