"""Against what an engine uses: pydantic, and Python's ``json.loads``."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from gateway.api.lax import as_utf8, truth
from gateway.errors import ClientError

PYDANTIC = TypeAdapter(bool | None)

WORDS = [
    "true",
    "false",
    "t",
    "f",
    "yes",
    "no",
    "y",
    "n",
    "on",
    "off",
    "1",
    "0",
    "2",
    "",
    " true",
    "yes ",
    "1.0",
    "oui",
]
VALUES = (
    st.booleans()
    | st.integers(-2, 2)
    | st.integers()
    | st.sampled_from([0.0, -0.0, 1.0, 0.5, 1e300])
    | st.sampled_from(WORDS)
    | st.sampled_from(WORDS).map(str.upper)
    | st.sampled_from(WORDS).map(str.title)
    | st.text(max_size=3)
    | st.sampled_from([[], {}, [True], {"a": 1}, "\ud800"])
)


@given(VALUES)
def test_a_boolean_is_what_pydantic_takes_for_one(value: object) -> None:
    try:
        expected = PYDANTIC.validate_python(json.loads(json.dumps(value)))
    except ValidationError:
        expected = None
    assert truth(msgspec.Raw(json.dumps(value).encode())) is expected


@pytest.mark.parametrize("raw", [b'"\\u0074RU\\u0065"', b"1e0", b"10e-1"])
def test_other_spellings_of_true(raw: bytes) -> None:
    assert truth(msgspec.Raw(raw)) is True


def test_a_long_value_is_none() -> None:
    assert truth(msgspec.Raw(b'"' + b"x" * 1_000_000 + b'"')) is None


TEXT = '{"model":"m","messages":[{"content":"h\u00e9llo \u4f60\U0001f600"}]}'


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
)
def test_a_text_is_read_in_every_encoding_that_python_reads(encoding: str) -> None:
    raw = TEXT.encode(encoding)
    assert json.loads(raw) == json.loads(TEXT)
    assert as_utf8(raw) == TEXT.encode()


def test_utf_8_is_not_copied() -> None:
    raw = TEXT.encode()
    assert as_utf8(raw) is raw


@pytest.mark.parametrize("raw", [b"\xff\xfe{", b"\xff\xfe\x00\xd8", b'{\x00"\x00a', b"\x00\x00\xfe\xff\x00"])
def test_what_is_not_in_the_encoding_as_which_it_begins_is_the_clients_error(raw: bytes) -> None:
    with pytest.raises(ClientError, match="send UTF-8"):
        as_utf8(raw)


@given(st.text(max_size=6), st.sampled_from(["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be", "utf-32-le", "utf-16"]))
def test_any_string_means_the_same_afterwards(value: str, encoding: str) -> None:
    raw = json.dumps({"a": value}, ensure_ascii=False).encode(encoding, "surrogatepass")
    try:
        read = as_utf8(raw)
    except ClientError:
        assert any("\ud800" <= char <= "\udfff" for char in value)
        return
    assert json.loads(read) == {"a": value}
