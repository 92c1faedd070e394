from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.framework import Medium, Prompt
from gateway.tokens.rendered import AGE, Rendered, name_of, read


def answer(ids: Any = (1, 2, 3, 4, 5, 6), hashes: Any = None, places: Any = None) -> bytes:
    ranges = {
        modality: [{"offset": offset, "length": length} for offset, length in each]
        for modality, each in (places or {}).items()
    }
    features = None if hashes is None else {"mm_hashes": hashes, "mm_placeholders": ranges, "kwargs_data": None}
    return msgspec.json.encode({"request_id": "chatcmpl-1", "token_ids": ids, "features": features, "model": "m"})


def test_ids_and_media_are_the_engines() -> None:
    prompt = read(
        answer(hashes={"image": ["a", "b"], "audio": ["c"]}, places={"image": [(3, 1), (0, 2)], "audio": [(4, 2)]})
    )
    assert prompt == Prompt(
        ids=array("I", [1, 2, 3, 4, 5, 6]),
        count=6,
        exact=True,
        media=(Medium(0, "b"), Medium(3, "a"), Medium(4, "c")),
    )
    assert prompt.whole
    assert prompt.own is None


@pytest.mark.parametrize("hashes", [None, {}, {"image": []}])
def test_a_text_has_no_media(hashes: Any) -> None:
    prompt = read(answer(hashes=hashes, places=hashes))
    assert prompt is not None
    assert prompt.media == ()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'{"token_ids": null}',
        b'{"token_ids": [1], "features": {}}',
        b'{"tokens": [1]}',
        b"\xff",
        b'{"token_ids": [1], "x": ' + b"[" * 100_000,
        answer([]),
        answer([-1]),
        answer([2**32]),
        answer(hashes={"image": ["a"]}),
        answer(places={"image": [(0, 1)]}, hashes={}),
        answer(hashes={"image": ["a"]}, places={"image": [(0, 1), (2, 1)]}),
        answer(hashes={"image": [""]}, places={"image": [(0, 1)]}),
        answer(hashes={"image": ["a"]}, places={"image": [(5, 2)]}),
        answer(hashes={"image": ["a"]}, places={"image": [(-1, 2)]}),
        answer(hashes={"image": ["a"]}, places={"image": [(1, 0)]}),
        answer(hashes={"video": ["a"], "audio": ["b"]}, places={"video": [(0, 5)], "audio": [(2, 2)]}),
    ],
)
def test_what_does_not_fit_together_is_no_answer(raw: bytes) -> None:
    assert read(raw) is None


@given(st.binary())
def test_garbage_is_no_answer(raw: bytes) -> None:
    assert read(raw) is None


def fields(**values: Any) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in values.items()}


def named(truncated: bool = False, adapter: str | None = None, route: str = "/chat", **values: Any) -> bytes:
    return name_of(route, fields(**{"messages": [1], **values}), adapter, truncated)


def test_a_body_is_named_by_what_may_change_its_prompt() -> None:
    same = [named(), named(stream=True), named(max_tokens=3), named(model="a"), named(temperature=1, cache_salt="a")]
    assert len(set(same)) == 1
    others = [
        named(messages=[2]),
        named(tools=[]),
        named(unheard_of=1),
        named(adapter="a"),
        named(route="/messages"),
        named(truncated=True, max_tokens=3),
        named(truncated=True, max_tokens=4),
    ]
    assert len({same[0], *others}) == 1 + len(others)


def prompt(size: int) -> Prompt:
    return Prompt(ids=array("I", [1]) * size, count=size, exact=True)


def test_the_least_recently_used_is_forgotten() -> None:
    rendered = Rendered(limit=10)
    for name in (b"a", b"b"):
        rendered.keep(name, prompt(5), 0.0)
    assert rendered.find(b"a", 1.0) is not None
    rendered.keep(b"c", prompt(5), 1.0)
    assert [rendered.find(name, 1.0) is not None for name in (b"a", b"b", b"c")] == [True, False, True]
    rendered.keep(b"d", prompt(11), 1.0)
    assert len(rendered) == 0


def test_what_is_old_is_asked_again() -> None:
    rendered = Rendered()
    rendered.keep(b"a", prompt(5), 0.0)
    assert rendered.find(b"a", AGE) is not None
    assert rendered.find(b"a", AGE + 1) is None
    assert len(rendered) == 0


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 8)), max_size=30))
def test_it_stays_within_its_limit(steps: list[tuple[str, int]]) -> None:
    rendered = Rendered(limit=16)
    for name, size in steps:
        rendered.keep(name.encode(), prompt(size), 0.0)
        assert sum(len(known.ids) for _, known in rendered._known.values()) == rendered._size <= 16
        assert rendered.find(name.encode(), 0.0) is not None
