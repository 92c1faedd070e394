"""Covers: gateway/api/errors.py, gateway/errors.py."""

from __future__ import annotations

import json

import pytest

from gateway.api.errors import render, sse_error
from gateway.api.routes import Dialect
from gateway.errors import (
    BodyTooLarge,
    ClientError,
    GatewayError,
    LimitReached,
    MethodNotAllowed,
    NoEndpoint,
    NotFound,
    PluginFailed,
    Saturated,
    Unauthorized,
    UnsupportedMediaType,
    UpstreamError,
    UpstreamTimeout,
)

ERRORS: list[tuple[type[GatewayError], int, str, str]] = [
    (ClientError, 400, "invalid_request_error", "invalid_request_error"),
    (Unauthorized, 401, "authentication_error", "authentication_error"),
    (NotFound, 404, "not_found_error", "not_found_error"),
    (MethodNotAllowed, 405, "invalid_request_error", "invalid_request_error"),
    (BodyTooLarge, 413, "request_too_large", "request_too_large"),
    (UnsupportedMediaType, 415, "invalid_request_error", "invalid_request_error"),
    (Saturated, 429, "rate_limit_error", "rate_limit_error"),
    (PluginFailed, 500, "internal_error", "api_error"),
    (UpstreamError, 502, "upstream_error", "api_error"),
    (NoEndpoint, 503, "service_unavailable", "overloaded_error"),
    (UpstreamTimeout, 504, "timeout_error", "timeout_error"),
]


@pytest.mark.parametrize(("error", "status", "openai", "anthropic"), ERRORS)
def test_each_error_in_both_dialects(error: type[GatewayError], status: int, openai: str, anthropic: str) -> None:
    got, headers, body = render(error('say "why"', param="x"), Dialect.OPENAI)
    assert (got, headers["content-type"]) == (status, "application/json")
    assert json.loads(body) == {"error": {"message": 'say "why"', "type": openai, "param": "x", "code": status}}
    got, headers, body = render(error('say "why"', param="x"), Dialect.ANTHROPIC)
    assert (got, headers["content-type"]) == (status, "application/json")
    assert json.loads(body) == {"type": "error", "error": {"type": anthropic, "message": 'say "why"'}}


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (0.2, "1"), (1.5, "2"), (30, "30")])
def test_retry_after_is_whole_seconds_and_never_zero(seconds: float, header: str) -> None:
    assert render(Saturated("full", retry_after=seconds), Dialect.OPENAI)[1]["retry-after"] == header


def test_headers_that_a_status_asks_for() -> None:
    assert render(Saturated("full"), Dialect.OPENAI)[1]["retry-after"] == "1"
    assert render(NoEndpoint("none"), Dialect.OPENAI)[1]["retry-after"] == "1"
    assert "retry-after" not in render(UpstreamError("gone"), Dialect.OPENAI)[1]
    assert render(Unauthorized("key"), Dialect.OPENAI)[1]["www-authenticate"] == "Bearer"
    assert render(MethodNotAllowed("POST"), Dialect.OPENAI)[1]["allow"] == "POST"


def test_a_limit_says_which_one_it_is_and_when_to_come_again() -> None:
    error = LimitReached("slow down", type="tokens", reason="tokens", retry_after=0.3331)
    error.headers = [("x-ratelimit-limit-tokens", "10")]
    status, headers, body = render(error, Dialect.OPENAI)
    assert (status, json.loads(body)) == (
        429,
        {"error": {"message": "slow down", "type": "tokens", "param": None, "code": "rate_limit_exceeded"}},
    )
    assert headers == {
        "content-type": "application/json",
        "retry-after": "1",
        "retry-after-ms": "334",
        "x-kvgate-reason": "tokens",
        "x-ratelimit-limit-tokens": "10",
    }
    body = render(error, Dialect.ANTHROPIC)[2]
    assert json.loads(body) == {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}


@pytest.mark.parametrize("after", [None, 90.0])
def test_a_spent_budget_is_not_to_be_tried_again(after: float | None) -> None:
    error = LimitReached("spent", type="insufficient_quota", reason="budget", retry_after=after)
    _, headers, body = render(error, Dialect.OPENAI)
    assert json.loads(body)["error"] | {"message": ""} == {
        "message": "",
        "type": "insufficient_quota",
        "param": None,
        "code": "insufficient_quota",
    }
    assert headers["x-should-retry"] == "false"
    assert headers.get("retry-after") == (None if after is None else "90")


def test_the_end_of_a_broken_stream() -> None:
    error = UpstreamError("gone")
    openai = sse_error(error, Dialect.OPENAI)
    assert openai.startswith(b'data: {"error":{"message":"gone"')
    assert openai.endswith(b"}\n\ndata: [DONE]\n\n")
    anthropic = sse_error(error, Dialect.ANTHROPIC)
    assert anthropic.startswith(b'event: error\ndata: {"type":"error"')
    assert anthropic.endswith(b"}\n\n")
    assert sse_error(error, Dialect.OPENAI, partial=True) == b"\n\n" + openai
