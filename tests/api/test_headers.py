from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.headers import ALSO, MAX_REQUEST_ID, request_id, to_client, to_engine, visible
from gateway.api.settings import PassThroughSettings
from gateway.errors import ClientError

SETTINGS = PassThroughSettings()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], "made"),
        (["abc-1.2:3_X"], "abc-1.2:3_X"),
        (["first", "second"], "first"),
        (["", "second"], "made"),
        (["a b\r\nX-Evil: 1"], "abX-Evil:1"),
        (["\u00e9\u4e2d"], "made"),
        (["x" * 10_000], "x" * MAX_REQUEST_ID),
        (["!" * 100 + "id"], "id"),
    ],
)
def test_a_request_id_is_the_first_cleaned_and_bounded(values: list[str], expected: str) -> None:
    assert request_id(values, lambda: "made") == expected


@given(st.lists(st.text(max_size=300), max_size=3))
def test_any_request_id_is_clean(values: list[str]) -> None:
    assert re.fullmatch(r"[A-Za-z0-9._:\-]{1,128}", request_id(values, lambda: "made"))


def test_what_goes_to_an_engine() -> None:
    sent = [
        ("Host", "gateway"),
        ("Content-Length", "5"),
        ("Content-Type", "application/json"),
        ("Content-Encoding", "identity"),
        ("Connection", "keep-alive, X-Hop"),
        ("X-Hop", "1"),
        ("Keep-Alive", "timeout=5"),
        ("Transfer-Encoding", "chunked"),
        ("TE", "trailers"),
        ("Upgrade", "h2c"),
        ("Expect", "100-continue"),
        ("Proxy-Authorization", "Basic x"),
        ("Authorization", "Bearer client"),
        ("X-Api-Key", "client"),
        ("Cookie", "a=b"),
        ("Accept-Encoding", "gzip, br"),
        ("X-Request-Id", "theirs"),
        ("X-Data-Parallel-Rank", "3"),
        ("X-data-parallel-host-port", "10.0.0.1:8000"),
        ("X-Vllm-Priority", "-5"),
        ("X-Session-ID", "s"),
        ("X-Prefiller-Host-Port", "10.0.0.1:8000"),
        ("X-Encoder-Hosts-Ports", "10.0.0.1:8000"),
        ("Endpoint-Load-Metrics-Format", "JSON"),
        ("X-Bad", "a\r\nb"),
        ("TraceParent", "00-aa-bb-01"),
        ("tracestate", "x=y"),
        ("User-Agent", "openai"),
        ("anthropic-version", "2023-06-01"),
        ("X-Tenant", "t"),
    ]
    expected = [
        ("traceparent", "00-aa-bb-01"),
        ("tracestate", "x=y"),
        ("user-agent", "openai"),
        ("anthropic-version", "2023-06-01"),
        ("x-tenant", "t"),
    ]
    coding = ("accept-encoding", "gzip")
    assert to_engine(sent, SETTINGS) == [*expected, coding]
    assert to_engine(sent, SETTINGS, api_key="engine") == [*expected, ("authorization", "Bearer engine"), coding]
    assert to_engine(sent, SETTINGS, readable=True) == expected


def test_steering_headers_pass_where_they_are_listed() -> None:
    sent = [("X-Data-Parallel-Rank", "3"), ("X-Vllm-Priority", "1"), ("x-session-id", "s")]
    settings = PassThroughSettings(steering_headers=("x-vllm-priority", "x-session-id"))
    assert to_engine(sent, settings) == [("x-vllm-priority", "1"), ("x-session-id", "s")]


def test_a_clients_key_passes_only_if_configured_and_the_engine_has_none() -> None:
    sent = [("Authorization", "Bearer client"), ("x-api-key", "client"), ("Cookie", "c")]
    settings = PassThroughSettings(authorization=True)
    assert to_engine(sent, settings) == [("authorization", "Bearer client"), ("x-api-key", "client")]
    assert to_engine(sent, settings, api_key="engine") == [("authorization", "Bearer engine")]


def test_what_goes_back_to_a_client() -> None:
    sent = [
        ("Date", "now"),
        ("Server", "uvicorn"),
        ("Content-Type", "text/event-stream; charset=utf-8"),
        ("Content-Length", "5"),
        ("Transfer-Encoding", "chunked"),
        ("Connection", "close"),
        ("X-Request-Id", "engine's"),
        ("Set-Cookie", "a=b"),
        ("Vary", "Origin"),
        ("Retry-After", "3"),
    ]
    assert to_client(sent) == [
        ("content-type", "text/event-stream; charset=utf-8"),
        ("vary", "Origin"),
        ("retry-after", "3"),
    ]


def test_plugins_see_no_credentials() -> None:
    sent = [("Authorization", "Bearer x"), ("X-API-Key", "x"), ("Cookie", "x"), ("X-Tenant", "a"), ("x-tenant", "b")]
    assert visible(sent) == {"x-tenant": "a"}


@pytest.mark.parametrize(("other", "name"), ALSO.items())
def test_the_names_of_llm_d_old_and_new_are_one_header(other, name) -> None:
    seen = visible([(other.upper(), "a")])
    assert seen[name] == "a"
    assert visible([(other, "a"), (name, "b")])[name] == visible([(name, "b"), (other, "a")])[name] == "b"
    with pytest.raises(ClientError, match=other):
        visible([(other, "a"), (other, "a")])
    assert to_engine([(other, "a"), (name, "b"), ("traceparent", "t")], SETTINGS) == [("traceparent", "t")]


@pytest.mark.parametrize("name", ["x-session-token", "EPP-Profile"])
def test_what_chooses_an_engine_here_is_for_no_engine(name) -> None:
    assert visible([(name, "a")]) == {name.lower(): "a"}
    assert to_engine([(name, "a")], SETTINGS) == []


@pytest.mark.parametrize("name", ["x-slo-ttft-ms", "x-slo-tpot-ms"])
@pytest.mark.parametrize("values", [("500", "900"), ("500", "500")])
def test_an_objective_is_given_once(name, values) -> None:
    assert visible([(name, values[0])]) == {name: "500"}
    with pytest.raises(ClientError, match=f"{name} is given more than once") as caught:
        visible([(name.upper(), values[0]), ("x-tenant", "a"), (name, values[1])])
    assert (caught.value.status, caught.value.param) == (400, name)
