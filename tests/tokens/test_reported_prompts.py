from __future__ import annotations

from array import array
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.prompt import MediaItem, Prompt
from gateway.tokens.reported_prompts import (
    AGE,
    OPENING,
    SLICE,
    ReportedPrompts,
    continued,
    prompt_key,
    reading,
    turn_keys,
)


def answer(ids: Any = (1, 2, 3, 4, 5, 6), hashes: Any = None, places: Any = None) -> bytes:
    ranges = {
        modality: [{"offset": offset, "length": length} for offset, length in each]
        for modality, each in (places or {}).items()
    }
    features = None if hashes is None else {"mm_hashes": hashes, "mm_placeholders": ranges, "kwargs_data": None}
    return msgspec.json.encode({"request_id": "chatcmpl-1", "token_ids": ids, "features": features, "model": "m"})


def read(raw: bytes) -> Prompt | None:
    steps = reading(raw)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            told: Prompt | None = end.value
            return told


def test_ids_and_media_are_the_engines() -> None:
    prompt = read(
        answer(hashes={"image": ["a", "b"], "audio": ["c"]}, places={"image": [(3, 1), (0, 2)], "audio": [(4, 2)]})
    )
    assert prompt == Prompt(
        ids=array("I", [1, 2, 3, 4, 5, 6]),
        count=6,
        exact=True,
        media=(MediaItem(0, "b"), MediaItem(3, "a"), MediaItem(4, "c")),
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
        b'{"tokens": null}',
        b'{"tokens": [-1]}',
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


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1), st.sampled_from([",", ", ", " ,\n"]), st.integers(1, 40))
def test_slices_are_the_whole(ids: list[int], comma: str, size: int) -> None:
    raw = f'{{"token_ids": [{comma.join(map(str, ids))}]}}'.encode()
    with patch("gateway.tokens.reported_prompts.SLICE", size):
        told = read(raw)
    assert told is not None
    assert told.ids.tolist() == ids


@pytest.mark.parametrize("part", ["[2, 3]", "null", "1.5", '"2"', '{"a": 2, "b": 3}', "-1", str(2**32)])
def test_a_part_that_is_no_number_spoils_the_whole(part: str) -> None:
    few = b"1234567,"
    raw = b'{"token_ids": [' + few * (SLICE // len(few)) + part.encode() + b"," + few * (SLICE // len(few)) + b"1]}"
    assert read(raw) is None
    assert read(raw.replace(part.encode() + b",", b"")) is not None


def test_a_long_text_of_numbers_is_no_list() -> None:
    assert read(msgspec.json.encode({"token_ids": ",".join(["1"] * SLICE)})) is None


def test_ids_are_read_in_slices() -> None:
    raw = msgspec.json.encode({"token_ids": [123_456] * 100_000})
    assert sum(1 for _ in reading(raw)) == len(raw) // SLICE + 1


def fields(**values: Any) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in values.items()}


def named(truncated: bool = False, adapter: str | None = None, route: str = "/chat", **values: Any) -> bytes:
    return prompt_key(route, fields(**{"messages": [1], **values}), adapter, truncated)


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
    answers = ReportedPrompts(limit=10)
    for name in (b"a", b"b"):
        answers.keep(name, prompt(5), 0.0)
    assert answers.find(b"a", 1.0) is not None
    answers.keep(b"c", prompt(5), 1.0)
    assert [answers.find(name, 1.0) is not None for name in (b"a", b"b", b"c")] == [True, False, True]
    answers.keep(b"d", prompt(11), 1.0)
    assert len(answers) == 0


def test_what_is_old_is_asked_again() -> None:
    answers = ReportedPrompts()
    answers.keep(b"a", prompt(5), 0.0)
    assert answers.find(b"a", AGE) is not None
    assert answers.find(b"a", AGE + 1) is None
    assert len(answers) == 0


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 8)), max_size=30))
def test_it_stays_within_its_limit(steps: list[tuple[str, int]]) -> None:
    answers = ReportedPrompts(limit=16)
    for name, size in steps:
        answers.keep(name.encode(), prompt(size), 0.0)
        assert sum(len(known.ids) for _, known in answers._known.values()) == answers._size <= 16
        assert answers.find(name.encode(), 0.0) is not None


def test_what_tokenize_tells_has_no_media() -> None:
    prompt = read(b'{"count": 3, "max_model_len": 9, "tokens": [5, 6, 7], "token_strs": null}')
    assert prompt is not None
    assert (prompt.ids.tolist(), prompt.count, prompt.exact, prompt.media) == ([5, 6, 7], 3, True, ())


def turns(*texts: str, **fields: str) -> list[bytes]:
    raws = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}
    return turn_keys("/v1/chat/completions", raws, [{"role": "user", "content": text} for text in texts], None)


def test_a_conversation_goes_on_from_what_was_told() -> None:
    answers = ReportedPrompts()
    early, later = (Prompt(ids=array("I", range(size)), count=size, exact=True) for size in (100, 200))
    answers.keep(b"1", early, 0.0, turns("a")[-1])
    answers.keep(b"2", later, 0.0, turns("a", "b", "c")[-1])
    assert answers.find_continued(turns("a", "b", "c", "d"), 1.0) == (3, later)
    assert answers.find_continued(turns("a", "x"), 1.0) == (1, early)
    assert answers.find_continued(turns("a"), 1.0) is None, "that is the same conversation"
    assert answers.find_continued(turns("x", "a"), 1.0) is None
    assert answers.find_continued(turns("a", "b", tools="t"), 1.0) is None, "with tools it is another prompt"
    assert answers.find_continued(turns("a", "b"), AGE + 1) is None
    assert answers._names.keys() == {turns("a", "b", "c")[-1]}, "what is forgotten is not found"


def test_what_was_told_is_believed_up_to_where_the_answer_begins() -> None:
    told = Prompt(ids=array("I", range(100)), count=100, exact=True)
    prompt, next_turn = (continued(told, [{"role": "user", "content": text}]) for text in ("hello", "hello there"))
    assert prompt.ids[: 100 - OPENING] == told.ids[: 100 - OPENING]
    assert (prompt.exact, prompt.whole, prompt.why) == (True, False, "untold")
    assert prompt.count > 100
    shared = 100 - OPENING + 7
    assert prompt.ids[:shared] == next_turn.ids[:shared], "equal beginnings stay equal"
