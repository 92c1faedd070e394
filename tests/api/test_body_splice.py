"""Bodies edited without being read, against the same bodies parsed, edited and dumped.

Documents are made as text, not by a dumper: with numbers and escapes that no parser gives back, with names spelt twice
and in disguise. What is parsed keeps all of that: numbers as they are written, objects as their pairs in order.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.api.body import JsonBody
from gateway.api.field_filter import EXTRAS, NESTS, SENSITIVE
from gateway.api.settings import NEVER, PassThroughSettings
from gateway.errors import ClientError

SETTINGS = PassThroughSettings(vllm_xargs=("mode",))
TRANSFER = "kv_transfer_params"

NAMES = ["model", "messages", "stream", "n", "a", "\u00e9", "", *sorted(SENSITIVE)]
NUMBERS = [
    "0",
    "-0",
    "1.50",
    "-0.0",
    "1E5",
    "1e+05",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775809",
    "123456789012345678901234567890",
    "1e999",
    "-1e999",
    "1e-999",
    "0.1000000000000000055511151231257827",
]
STRINGS = [
    r'""',
    r'"a"',
    r'"\u00e9"',
    '"\u00e9"',
    '"\U0001f600"',
    r'"\ud83d\ude00"',
    r'"\/\b\f\n\r\t\"\\"',
    r'"\u0000"',
    '"\u2028"',
    '"\u007f"',
]
BLANKS = st.sampled_from(["", "", "", " ", "\n", "\t\r\n  "])


@st.composite
def keys(draw: st.DrawFn) -> str:
    """A name as JSON, each of its characters plain or escaped."""
    name = draw(st.sampled_from(NAMES))
    if draw(st.booleans()):
        return json.dumps(name, ensure_ascii=False)
    escaped = draw(st.lists(st.booleans(), min_size=len(name), max_size=len(name)))
    spelt = "".join(rf"\u{ord(c):04x}" if e else c for c, e in zip(name, escaped, strict=True))
    return f'"{spelt}"'


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    members = draw(st.lists(st.tuples(BLANKS, keys(), BLANKS, BLANKS, inner, BLANKS), max_size=6))
    return "{" + ",".join(f"{a}{key}{b}:{c}{value}{d}" for a, key, b, c, value, d in members) + "}"


@st.composite
def lists(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    members = draw(st.lists(st.tuples(BLANKS, inner, BLANKS), max_size=4))
    return "[" + ",".join(f"{a}{value}{b}" for a, value, b in members) + "]"


VALUES = st.recursive(
    st.sampled_from(["null", "true", "false", *NUMBERS, *STRINGS]),
    lambda inner: lists(inner) | objects(inner),
    max_leaves=12,
)
BODIES = st.builds(lambda before, body, after: f"{before}{body}{after}", BLANKS, objects(VALUES), BLANKS)


class Number(str):
    """As it is written."""

    __slots__ = ()


class Pairs(NamedTuple):
    """An object: its members in order, names twice where they are there twice."""

    members: tuple[tuple[str, Any], ...]


def told(text: str) -> Any:
    """All that ``text`` says. Raises ValueError for what is no JSON."""
    return json.loads(
        text,
        object_pairs_hook=lambda pairs: Pairs(tuple(pairs)),
        parse_int=Number,
        parse_float=Number,
        parse_constant=_no_constant,
    )


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def top(text: str) -> dict[str, Any]:
    """The fields of a body that counts for any engine: of a name that is there twice the last."""
    parsed = told(text)
    assert isinstance(parsed, Pairs)
    return dict(parsed.members)


def passed(value: Any, name: str) -> Any:
    """What may pass of one field; None: nothing. As the rules are told in ``passing``, of parsed values."""
    if name in NEVER:
        return None
    if name not in EXTRAS | NESTS:
        return (value,)
    if not isinstance(value, Pairs):
        return (value,) if value is None else None
    inner = dict(value.members)
    if name in EXTRAS:
        kept = {key: inner[key] for key in inner if key == "mode"}
        return (Pairs(tuple(kept.items())),) if kept else None
    if SENSITIVE.isdisjoint(inner):
        return (value,)
    return (Pairs(tuple(edited(inner).items())),)


def edited(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: may[0] for name, value in fields.items() if (may := passed(value, name)) is not None}


def in_order(fields: dict[str, Any]) -> Any:
    """To compare two bodies whose fields may stand in another order."""
    return sorted(fields.items(), key=lambda field: field[0])


@given(BODIES, st.sampled_from(["m", "served/name", '"', "\u00e9\U0001f600"]))
def test_an_edited_body_says_what_the_parsed_one_would(text: str, model: str) -> None:
    spliced = JsonBody(text.encode(), SETTINGS).encode(model).decode()
    assert in_order(top(spliced)) == in_order(edited(top(text)) | {"model": model})


@given(BODIES)
@example('{"a":1,"\\u0061":2,"a":{"b":1,"b":[1e999]}}')
def test_a_value_that_is_not_edited_keeps_its_bytes(text: str) -> None:
    body = JsonBody(text.encode(), SETTINGS)
    out = body.encode("another").decode()
    for name, value in body.fields.items():
        if name not in EXTRAS | NESTS | {"model"}:
            assert bytes(value).decode() in text
            assert f"{json.dumps(name, ensure_ascii=False)}:{bytes(value).decode()}" in out


@given(BODIES, keys(), VALUES, keys())
def test_more_edits_of_a_copy(text: str, put: str, value: str, dropped: str) -> None:
    body = JsonBody(text.encode(), SETTINGS)
    before = body.encode("m")
    leg = body.copy()
    leg.set(json.loads(put), msgspec.Raw(value.encode()))
    leg.drop(json.loads(dropped))
    expected = edited(top(text)) | {json.loads(put): told(value)}
    expected.pop(json.loads(dropped), None)
    assert in_order(top(leg.encode("m").decode())) == in_order(expected | {"model": "m"})
    assert body.encode("m") == before


SPOILED = st.sampled_from(
    [
        ("\ufeff\ufeff", ""),
        ("", "x"),
        ("", "{}"),
        ("", "\x00"),
        ("", ","),
        ("[", "]"),
        ('{"a":NaN,"b":', "}"),
        ('{"a":-Infinity,"b":', "}"),
        ('{"a":01,"b":', "}"),
        ('{"a":"\t","b":', "}"),
        ('{"a":"\\x41","b":', "}"),
        ('{"a":"\\ud800","b":', ",}"),
        ('{"a":"\\ud800","b":', "}"),  # half a character, which no tokenizer takes
        ('{"a":["\\udc00\\ud800"],"b":', "}"),
        ('{"\\ud800":1,"b":', "}"),
        ('{"a":' * 5000 + "1" + "}" * 5000 + ',"b":', "}"),
    ]
)


@given(BODIES, SPOILED)
def test_a_spoiled_body_is_the_clients_error(text: str, around: tuple[str, str]) -> None:
    with pytest.raises(ClientError) as caught:
        JsonBody((around[0] + text + around[1]).encode(), SETTINGS)
    assert caught.value.status == 400


@given(BODIES, st.data())
def test_bytes_at_random_are_an_error_or_a_body_without_what_may_not_pass(text: str, data: st.DataObject) -> None:
    """Whatever passes our parser must be as harmless to an engine's, which may read more, or less, into it."""
    raw = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw)))
        raw[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3) | st.sampled_from([b'"', b"\\"]))
    try:
        out = JsonBody(bytes(raw), SETTINGS).encode("m")
    except ClientError:
        return
    try:
        read = json.loads(out)  # as vLLM reads it
    except ValueError:
        return  # it refuses what we let through in a value that we do not read
    assert isinstance(read, dict)
    _harmless(read)


def _harmless(fields: dict[str, Any]) -> None:
    assert NEVER.isdisjoint(fields)
    for name in EXTRAS.intersection(fields):
        assert fields[name] is None or fields[name].keys() <= {"mode"}
    for name in NESTS.intersection(fields):
        if isinstance(fields[name], dict):
            _harmless(fields[name])


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
@pytest.mark.parametrize("depth", [100, 2000, 9000])
def test_depth(opening: str, depth: int) -> None:
    closing = "".join("}" if bracket == "{" else "]" for bracket in reversed(opening) if bracket in "{[")
    raw = b'{"model":"m","x":' + opening.encode() * depth + b"1" + closing.encode() * depth + b"}"
    if depth == 100:
        assert JsonBody(raw, SETTINGS).encode("m") is raw
        return
    with pytest.raises(ClientError, match="nested too deeply"):
        JsonBody(raw, SETTINGS)
