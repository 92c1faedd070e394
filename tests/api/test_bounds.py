from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api import bounds
from gateway.api.bounds import MAX_CONTAINERS, MAX_STRINGS, MAX_VALUES, check
from gateway.errors import BodyTooLarge

MIB = 1024 * 1024


def prompt(inside: bytes) -> bytes:
    return b'{"model":"m","prompt":[' + inside + b"]}"


# Made when wanted: all of them take a second and 100 MB, which every process of a run would spend.
BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "lists": (lambda: prompt(b"[1]," * 4_000_000 + b"[1]"), "objects and lists"),
    "texts": (lambda: prompt(b'"a",' * 4_000_000 + b'"a"'), "strings"),
    "tools": (lambda: b'{"model":"m","tools":[' + b'{"a":1},' * 4_000_000 + b"{}]}", "strings"),
    "messages": (lambda: b'{"model":"m","messages":[' + b"{}," * 4_000_000 + b"{}]}", "objects and lists"),
    "ids": (lambda: prompt(b"1," * 4_000_000 + b"1"), "values"),
    "nested": (lambda: b"[" * 16 * MIB, "objects and lists"),
    "keys": (
        lambda: b'{"model":"m"' + b"".join(b',"%d":1' % number for number in range(1_900_000)) + b"}",
        "strings",
    ),
}


@pytest.mark.parametrize("name", list(BOMBS))
def test_bodies_that_would_stop_the_loop_are_refused(name: str) -> None:
    raw, says = BOMBS[name]
    with pytest.raises(BodyTooLarge, match=says) as caught:
        check(raw())
    assert caught.value.status == 413


def chat(messages: int, content: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": content}] * messages}).encode()


GENUINE: dict[str, Callable[[], bytes]] = {
    "a prompt of a million ids": lambda: prompt(b"128000," * 999_999 + b"1"),
    "a hundred prompts of ten thousand ids": lambda: prompt(b",".join([b"[" + b"1," * 9_999 + b"1]"] * 100)),
    "thousands of prompts": lambda: prompt(b",".join([b'"abc"'] * 4_096)),
    "a long chat": lambda: chat(6_000, [{"type": "text", "text": "hello, [world] {again}"}]),
    "a prompt of JSON": lambda: chat(1, json.dumps([{"a": [1, 2], "b": {"c": "d\\"}}] * 70_000)),
    "a prompt of JSON, quoted once more": lambda: chat(1, json.dumps(json.dumps([{"a": ["\\"]}] * 100_000))),
    "a prompt of numbers": lambda: chat(1, "1," * 3_000_000),
    "a prompt of brackets and backslashes": lambda: chat(1, "[{\\" * 500_000),
    "code in every message": lambda: chat(2_000, 'if (a[0] == {}) { return ["\\\\"]; } ' * 20),
    "a bias for every token": lambda: json.dumps(
        {"model": "m", "logit_bias": {str(i): -100 for i in range(150_000)}}
    ).encode(),
    "schemas of tools": lambda: json.dumps(
        {
            "tools": [
                {
                    "function": {
                        "name": str(i),
                        "parameters": {"properties": {f"p{j}": {"enum": ["a"]} for j in range(20)}},
                    }
                }
                for i in range(300)
            ]
        }
    ).encode(),
}


@pytest.mark.parametrize("name", list(GENUINE))
def test_genuine_requests_pass(name: str) -> None:
    check(GENUINE[name]())


def test_each_bound_is_exact() -> None:
    check(b"[" * MAX_CONTAINERS)
    check(prompt(b'"a",' * (MAX_STRINGS - 4) + b'"a"'))
    check(b"1," * MAX_VALUES)
    for raw in (b"[" * (MAX_CONTAINERS + 1), prompt(b'"a",' * (MAX_STRINGS - 3) + b'"a"'), b"1," * (MAX_VALUES + 1)):
        with pytest.raises(BodyTooLarge):
            check(raw)


JSON = st.recursive(
    st.none() | st.integers() | st.text(st.sampled_from('{}[],"\\a\u00e9'), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.sampled_from('{["\\,b'), max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


def counted(value: object) -> tuple[int, int, int]:
    """Containers, strings and commas of a value in JSON."""
    if isinstance(value, str):
        return 0, 1, 0
    if not isinstance(value, list | dict):
        return 0, 0, 0
    inner = [counted(one) for one in (value.values() if isinstance(value, dict) else value)]
    containers, strings, commas = (sum(each) for each in zip(*inner, strict=True)) if inner else (0, 0, 0)
    return containers + 1, strings + (len(value) if isinstance(value, dict) else 0), commas + max(0, len(value) - 1)


@given(JSON, st.booleans())
def test_what_stands_in_strings_does_not_count(value: object, ascii_only: bool) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only).encode()
    containers, strings, commas = counted(value)
    with pytest.MonkeyPatch.context() as patch:
        for name, count in (("MAX_CONTAINERS", containers), ("MAX_STRINGS", strings), ("MAX_VALUES", commas)):
            patch.setattr(bounds, name, count)
        check(raw)
        for name, count in (("MAX_CONTAINERS", containers), ("MAX_STRINGS", strings), ("MAX_VALUES", commas)):
            if count:
                patch.setattr(bounds, name, count - 1)
                with pytest.raises(BodyTooLarge):
                    check(raw)
                patch.setattr(bounds, name, count)
