from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.session import read_session
from gateway.api.settings import SessionSettings

DEFAULT = SessionSettings()


def test_headers_come_before_the_cookie_and_that_before_the_body() -> None:
    settings = SessionSettings(headers=("x-mine", "x-session-id"), cookie="sid")
    headers = {"x-session-id": "b", "x-mine": "a"}
    assert read_session("body", headers, "sid=c", settings) == "a"
    assert read_session("body", {"x-session-id": "b", "x-mine": ""}, "sid=c", settings) == "b"
    assert read_session("body", {}, "x=1; sid=c; y=2", settings) == "c"
    assert read_session("body", {}, "", settings) == "body"
    assert read_session(None, {}, "", settings) is None


def test_by_default_no_cookie_is_read() -> None:
    assert read_session(None, {}, "sid=c", DEFAULT) is None
    assert read_session(None, {"x-claude-code-session-id": "s"}, "", DEFAULT) == "s"


def test_a_cookie_is_known_by_its_whole_name_and_may_hold_an_equals_sign() -> None:
    settings = SessionSettings(cookie="sid")
    assert read_session(None, {}, "xsid=1; sid=a=b;sid=2", settings) == "a=b"
    assert read_session(None, {}, "sid=; SID=1; sid", settings) is None


@given(st.text(max_size=200))
def test_no_cookie_header_breaks_it(cookie) -> None:
    found = read_session("body", {}, cookie, SessionSettings(cookie="sid"))
    assert found == "body" or found in cookie


@pytest.mark.parametrize(
    "bad", [{"headers": ("X-Upper",)}, {"headers": ("a b",)}, {"headers": ("authorization",)}, {"cookie": "a=b"}]
)
def test_names_are_names(bad) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        SessionSettings(**bad)
