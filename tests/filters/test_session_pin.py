from __future__ import annotations

from base64 import b64encode

import pytest

from filters.session_pin import SessionPin
from gateway.framework import Plan
from tests.support.candidates import context, endpoint, names, request

FLEET = [endpoint(0), endpoint(1), endpoint(2)]


def pin(**parameters) -> SessionPin:
    return SessionPin(SessionPin.Parameters(**parameters), context())


def test_the_answer_s_token_brings_the_client_back() -> None:
    rule = pin()
    token = rule.answer_headers(request(), Plan.of(FLEET[1]))
    assert list(token) == ["x-session-token"]
    assert names(rule.filter(request(headers=token), FLEET)) == ["e1"]


@pytest.mark.parametrize("token", ["", "no base64", b64encode(b"e9").decode()])
def test_a_token_that_names_no_candidate_keeps_all(token) -> None:
    assert pin().filter(request(headers={"x-session-token": token}), FLEET) is FLEET
    assert pin().filter(request(), FLEET) is FLEET


def test_a_token_may_be_of_the_prefill_leg() -> None:
    rule = pin(leg="prefill", header="X-Session-Token-Prefill")
    token = rule.answer_headers(request(), Plan.of(FLEET[1], prefill=FLEET[2]))
    assert names(rule.filter(request(headers=token), FLEET)) == ["e2"]
    assert rule.answer_headers(request(), Plan.of(FLEET[1])) == {}


def test_a_header_is_needed() -> None:
    with pytest.raises(ValueError, match="header must not be empty"):
        SessionPin.Parameters(header=" ")
