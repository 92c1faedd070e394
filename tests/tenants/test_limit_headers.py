from __future__ import annotations

import pytest

from gateway.tenants.limit_headers import anthropic_limit_headers, duration, limit_headers
from gateway.tenants.limit_settings import LimitSettings
from gateway.tenants.meters import Meter


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (1e-10, "0s"),
        (0.0121, "13ms"),
        (0.012, "12ms"),
        (0.9999, "1s"),
        (1.5, "1.5s"),
        (59.9999, "1m0s"),
        (360.0, "6m0s"),
        (61.25, "1m1.25s"),
        (3602.0, "1h0m2s"),
    ],
)
def test_times_are_written_as_openai_writes_them(seconds, text):
    assert duration(seconds) == text


def meters() -> list[Meter]:
    tenant = Meter("tenant red", LimitSettings(requests_per_minute=600, tokens_per_minute=6000), 0.0)
    key = Meter("key ci", LimitSettings(requests_per_minute=60), 0.0)
    return [tenant, key]


def test_of_several_limits_the_one_with_the_least_left_is_shown():
    tenant, key = meters()
    tenant.tokens.take(1500, 0.0)
    assert dict(limit_headers([tenant, key], 0.0)) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "60",
        "x-ratelimit-reset-requests": "0s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "4500",
        "x-ratelimit-reset-tokens": "15s",
    }
    tenant.requests.take(570, 0.0)
    assert dict(limit_headers([tenant, key], 0.0))["x-ratelimit-limit-requests"] == "600"
    assert dict(limit_headers([tenant, key], 0.0))["x-ratelimit-remaining-requests"] == "30"


def test_anthropic_has_words_and_times_of_its_own(clock):
    tenant, key = meters()
    tenant.tokens.take(7000, 0.0)
    headers = dict(anthropic_limit_headers([tenant, key], 0.0, clock.wall()))
    assert headers == {
        "anthropic-ratelimit-requests-limit": "60",
        "anthropic-ratelimit-requests-remaining": "60",
        "anthropic-ratelimit-requests-reset": "2026-11-26T12:00:00Z",
        "anthropic-ratelimit-tokens-limit": "6000",
        "anthropic-ratelimit-tokens-remaining": "0",
        "anthropic-ratelimit-tokens-reset": "2026-11-26T12:01:10Z",
    }


def test_where_no_rate_is_limited_there_are_none():
    assert limit_headers([Meter("key ci", LimitSettings(concurrent=3), 0.0)], 0.0) == []
