from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.observability.redaction import MASK, Redaction
from tests.support.examples import examples

redact = Redaction()


@pytest.mark.parametrize(
    "name",
    ["key", "api_key", "ENGINE_KEY", "authorization", "Proxy-Authorization", "set-cookie", "password", "secrets"],
)
def test_a_field_named_like_a_secret_is_masked(name) -> None:
    assert redact(None, "info", {"event": "e", name: "abc"}) == {"event": "e", name: MASK}
    assert redact.field("headers", {name: "abc", "accept": "*/*"}) == {name: MASK, "accept": "*/*"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abc.def-ghi", "Authorization: ***"),
        ("sent bearer abc", "sent bearer ***"),
        ("{'authorization': 'Bearer abc', 'accept': '*/*'}", "{'authorization': '***', 'accept': '*/*'}"),
        ("('x-api-key', 'abc')", "('x-api-key', '***')"),
        ("?api_key=abc&x=1", "?api_key=***"),
        ("http://user:pass@host:8000/v1", "http://user:***@host:8000/v1"),
        ("key sk-proj-1234567890 refused", "key sk-*** refused"),
        ("token hf_AbCdEfGhIj", "token hf_***"),
        ("new kvg-AbCd_efGh-1", "new kvg-***"),
        ("authorization=Basic dXNlcjpwYXNz", "authorization=***"),
        ("(b'X-Api-Key', b'abc')", "(b'X-Api-Key', b'***')"),
    ],
)
def test_what_has_a_secrets_shape_is_masked(text, shown) -> None:
    assert redact.text(text) == shown
    assert redact.text(shown) == shown, "a masked line stays as it is"


@pytest.mark.parametrize(
    "text",
    [
        "prompt_tokens=12 cached_tokens=8",
        "10.0.0.1:8000",
        "http://10.0.0.1:8000/v1/chat/completions",
        "model meta-llama/Llama-3.1-8B-Instruct",
        "a task-runner, a risk-free one",
        "basic usage",
    ],
)
def test_the_innocent_pass(text) -> None:
    assert redact.text(text) == text


def test_numbers_pass_whatever_they_are_called() -> None:
    assert redact(None, "info", {"event": "e", "keys": 12, "x": None, "ok": True}) == {
        "event": "e",
        "keys": 12,
        "x": None,
        "ok": True,
    }


def test_the_id_of_a_key_is_no_secret() -> None:
    assert Redaction().field("key_id", "red-ci") == "red-ci"
    assert Redaction().field("key", "red-ci") == MASK


def test_objects_become_their_masked_text() -> None:
    class Leaky:
        def __str__(self) -> str:
            return "Leaky(api_key='abcdef')"

    shown = redact(None, "info", {"event": "e", "what": Leaky(), "raw": b"Bearer abc", "all": ["Bearer abc", 1]})
    assert shown == {"event": "e", "what": "Leaky(api_key='***')", "raw": "Bearer ***", "all": ["Bearer ***", 1]}


ANY = st.text(max_size=20)


@examples(100)
@given(before=ANY, secret=st.text(st.characters(exclude_characters="*"), min_size=6, max_size=30), after=ANY)
@example(before="x", secret="a.*+b(", after="y")
def test_a_configured_key_never_shows_wherever_it_stands(before, secret, after) -> None:
    redaction = Redaction([secret, "another-secret"])
    shown = redaction(None, "info", {"event": f"{before}{secret}{after}", "error": secret, "list": [secret]})
    for text in (shown["event"], shown["error"], shown["list"][0]):
        assert secret not in text


def test_of_two_keys_where_one_begins_the_other_the_longer_is_masked_whole() -> None:
    assert Redaction(["secret", "secret-and-more"]).text("x secret-and-more y") == "x *** y"


def test_a_very_short_key_does_not_mask_everything() -> None:
    assert Redaction(["test", ""]).text("a test") == "a test"
