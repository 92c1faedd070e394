from __future__ import annotations

from base64 import b64encode

import pytest

from gateway.framework import Plan
from scorers.session_token import SessionToken
from tests.support.candidates import context, endpoint, request

FLEET = [endpoint(0), endpoint(1), endpoint(2)]


def scorer(**parameters) -> SessionToken:
    return SessionToken(SessionToken.Parameters(**parameters), context())


def test_the_answer_s_token_brings_the_client_back() -> None:
    token = scorer().answer_headers(request(), Plan.of(FLEET[1]))
    assert token == {"x-session-token": b64encode(b"e1").decode()}
    assert scorer().score(request(headers=token), FLEET) == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("token", ["", "no base64", b64encode(b"e9").decode()])
def test_a_token_that_names_no_candidate_says_nothing(token) -> None:
    assert scorer().score(request(headers={"x-session-token": token}), FLEET) == [0.0] * 3
    assert scorer().score(request(), FLEET) == [0.0] * 3


def test_a_token_may_be_of_the_prefill_leg() -> None:
    prefill = scorer(leg="prefill", header="X-Session-Token-Prefill")
    token = prefill.answer_headers(request(), Plan.of(FLEET[1], prefill=FLEET[2]))
    assert list(token) == ["x-session-token-prefill"]
    assert prefill.score(request(headers=token), FLEET) == [0.0, 0.0, 1.0]
    assert prefill.answer_headers(request(), Plan.of(FLEET[1])) == {}


def test_a_header_is_needed() -> None:
    with pytest.raises(ValueError, match="header must not be empty"):
        SessionToken.Parameters(header=" ")
