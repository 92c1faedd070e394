from __future__ import annotations

import gc
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api import bounds
from gateway.api.known_chats import CHAIN, MOST, OVERHEAD, SHARE, KnownChats
from gateway.api.parse import Parsed, parse
from gateway.api.routes import ROUTES
from gateway.api.settings import PassThroughSettings
from gateway.core.prompt import ChatInput
from gateway.errors import GatewayError
from tests.support.examples import examples, slowly

SETTINGS = PassThroughSettings()
CHAT = ROUTES["/v1/chat/completions"]

texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=30)
parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=3)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": st.one_of(texts, parts, st.none())},
    optional={"name": texts, "tool_calls": st.lists(st.fixed_dictionaries({"id": texts}), max_size=2)},
)
others = st.fixed_dictionaries(
    {},
    optional={
        "model": texts,
        "n": st.integers(1, 3),
        "tools": st.lists(st.fixed_dictionaries({"type": st.just("function")}), max_size=2),
        "kv_transfer_params": st.none(),
        "metadata": st.dictionaries(st.just("messages"), st.lists(messages, max_size=2), max_size=1),
    },
)


def call(raw: bytes, known: KnownChats | None = None) -> Parsed:
    return parse(CHAT, raw, "application/json", SETTINGS, known)


def chat(read: Parsed) -> ChatInput:
    assert isinstance(read.input, ChatInput)
    return read.input


def told(raw: bytes, known: KnownChats | None = None) -> Any:
    """All that is read of a body, or the error."""
    try:
        read = call(raw, known)
    except GatewayError as error:
        return type(error), str(error), error.param
    assert isinstance(read.input, ChatInput) or known is None
    given: Any = read.input
    return (
        [*read.body.fields.items()],  # type: ignore[attr-defined]
        [given.messages, bytes(given.raw), given.tools],
        [read.body.encode("m"), read.body.encode("other")],
        [read.model, read.n, read.stream, read.max_tokens, read.indivisible],
    )


def body(*given: Any, **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": given} | fields).encode()


def said(text: str, role: str = "user") -> dict[str, str]:
    return {"role": role, "content": text}


def known_of(read: Parsed) -> int:
    """How many of a chat's messages are known from before."""
    found = chat(read).known
    if found is None:
        return 0
    assert all(one is other for one, other in zip(found.messages, chat(read).messages, strict=False))
    return len(found.messages)


@examples(400)
@given(
    whole=st.lists(messages, min_size=1, max_size=8),
    cuts=st.lists(st.tuples(st.integers(1, 8), st.lists(messages, max_size=2)), min_size=2, max_size=6),
    before=others,
    after=others,
    separators=st.sampled_from([(",", ":"), (", ", ": "), (" ,\n ", "\t: ")]),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, None, 1]),
)
def test_what_is_read_is_what_the_whole_body_says(
    whole: list[Any],
    cuts: list[tuple[int, list[Any]]],
    before: dict[str, Any],
    after: dict[str, Any],
    separators: tuple[str, str],
    ascii_only: bool,
    indent: int | None,
) -> None:
    known = KnownChats(least=16, step=1)
    for count, more in cuts:
        given = before | {"messages": whole[:count] + more} | after
        text = json.dumps(given, separators=separators, ensure_ascii=ascii_only, indent=indent)
        assert told(text.encode(), known) == told(text.encode())


@examples(400)
@given(
    start=st.integers(0, 400),
    removed=st.integers(0, 3),
    put=st.sampled_from(
        [
            b"",
            b",",
            b"]",
            b"}",
            b'"',
            b"\\",
            b"\xff",
            b"[",
            b'{"role":"user"}',
            b',"messages":[]',
            b"]]",
            b"\\ud800",
            b"1",
        ]
    ),
)
def test_a_body_that_is_broken_anywhere_is_refused_as_ever(start: int, removed: int, put: bytes) -> None:
    known = KnownChats(least=16, step=1)
    raw = body(said("be brief", "system"), said("x" * 40), said("y" * 40), said("z"), metadata={"messages": []})
    call(raw, known)
    broken = raw[:start] + put + raw[start + removed :]
    assert told(broken, known) == told(broken)


def test_the_next_turn_begins_with_what_is_known() -> None:
    known = KnownChats(least=16, step=1)
    turns = [said("be brief", "system"), said("a question"), said("an answer", "assistant"), said("another")]
    assert known_of(call(body(*turns[:2]), known)) == 0
    assert known_of(call(body(*turns), known)) == 2
    assert known_of(call(body(*turns, said("well", "assistant"), said("now?")), known)) == 4
    assert known_of(call(body(*turns[:3], said("else")), known)) == 3, "another end"
    assert known_of(call(body(turns[0], said("new")), known)) == 1, "the system prompt of all"
    assert known_of(call(body(turns[0], said("new")), known)) == 2, "the same again"


def test_another_body_with_the_same_messages_is_not_known() -> None:
    known = KnownChats(least=16, step=1)
    turns = [said("be brief", "system"), said("a question")]
    call(body(*turns), known)
    assert known_of(call(body(*turns, temperature=1), known)) == 2, "behind them, it may be another"
    assert known_of(call(json.dumps({"temperature": 1, "messages": turns}).encode(), known)) == 0


def test_the_last_of_two_lists_of_messages_counts() -> None:
    known = KnownChats(least=16, step=1)
    first = body(said("one"), said("two"), said("three"))
    call(first, known)
    twice = first[:-1] + b',"messages":[{"role":"user","content":"four"}]}'
    assert chat(call(twice, known)).messages == [said("four")]
    nested = b'{"metadata":' + first[:-1] + b'},"messages":[{"role":"user","content":"four"}]}'
    for _ in range(2):
        assert chat(call(nested, known)).messages == [said("four")]


def test_what_is_no_message_ends_nothing() -> None:
    known = KnownChats(least=16, step=1)
    raw = body(said("one"), said("two"), said("three"))
    call(raw, known)
    wrong = raw[:-2] + b', "four"]}'
    assert told(wrong, known) == told(wrong)
    assert "`$[3]`" in str(told(wrong))


def test_only_long_bodies_are_remembered() -> None:
    known = KnownChats()
    short, long = body(said("x" * 1000), said("y")), body(said("x" * 40_000), said("y"))
    for raw in (short, short, long):
        assert known_of(call(raw, known)) == 0
    assert known_of(call(long, known)) == 1
    assert known_of(call(body(said("x" * 40_000), said("y"), said("z" * 5000), said("!")), known)) == 1
    assert known_of(call(body(said("x" * 40_000), said("y"), said("z" * 5000), said("?")), known)) == 3


def test_bodies_that_differ_in_their_first_bytes_only_are_all_known() -> None:
    known, turns = KnownChats(), [said("x" * 20_000), said("y")]
    bodies = [json.dumps({"user": f"{number}", "messages": turns}).encode() for number in range(5)]
    assert [known_of(call(raw, known)) for raw in bodies * 2] == [0] * 5 + [1] * 5


def test_the_longest_bodies_are_not_remembered() -> None:
    known = KnownChats()
    for size, count in ((MOST - 1000, 1), (MOST, 0)):
        raw = body(said("x" * size), said("y"))
        call(raw, known)
        assert known_of(call(raw, known)) == count


def test_the_limits_hold_for_known_and_new_together(monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownChats(least=16, step=1)
    monkeypatch.setattr(bounds, "MAX_CONTAINERS", 20)
    many = [said("xy")] * 15
    call(body(*many), known)
    for count, fails in ((2, False), (3, False), (4, True)):
        raw = body(*many, *[said("z")] * count)
        assert told(raw, known) == told(raw)
        assert ("too many" in str(told(raw))) is fails
    assert known_of(call(body(*many, said("{" * 9)), known)) == 0, "it is counted as a whole"


def test_a_long_conversation_is_known_to_its_end() -> None:
    known = KnownChats(least=16, step=1)
    turns: list[Any] = []
    for number in range(4 * CHAIN):
        turns += [said(f"question {number}"), said(f"answer {number}", "assistant")]
        raw = body(*turns, said("and?"))
        assert told(raw, known) == told(raw)
        assert known_of(call(body(*turns, said("or?")), known)) == len(turns)
    for number in (3, CHAIN + 1, 2 * CHAIN):
        assert known_of(call(body(*turns[: 2 * number], said("another way")), known)) <= 2 * number


def test_a_long_conversation_leaves_others_known_however_long_it_grows() -> None:
    known = KnownChats(memory=600_000, least=16, step=16)
    other = [said("be kind", "system"), said("x" * 100)]
    call(body(*other), known)
    turns: list[Any] = []
    for number in range(200):
        turns += [said(f"{number} " + "y" * 1000)]
        call(body(*turns), known)
        call(body(*turns, said("once more")), known)
        assert known_of(call(body(*other, said("?")), known)) >= 2, len(body(*turns))
        assert known_of(call(body(*turns), known)) >= 20 or number < 30


sizes = st.integers(1, 20_000)


@examples(60)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.lists(sizes, max_size=3)), max_size=40))
def test_no_clients_chats_drop_one_that_is_in_use(steps: list[tuple[int, int, list[int]]]) -> None:
    known = KnownChats(memory=200_000, least=16, step=16)
    mine, chats = [said("be kind", "system"), said("x" * 100)], [[said(f"{name}")] for name in range(4)]
    call(body(*mine), known)
    for name, cut, added in steps:
        chats[name] = chats[name][: -cut or None] + [said(f"{size}" * (size // 5 + 1)) for size in added]
        raw = body(*chats[name], said("?"))
        assert told(raw, known) == told(raw)
        assert known.size <= known._most
        assert known_of(call(body(*mine, said("?")), known)) >= 2


def test_the_same_long_body_again_takes_no_memory() -> None:
    known = KnownChats(memory=4_000_000)
    raw = body(*[said("y" * 4200) for _ in range(40)])
    call(raw, known)
    call(raw, known)
    size = known.size
    for _ in range(50):
        call(raw, known)
    assert 0 < known.size == size


def test_what_could_never_be_read_is_not_remembered() -> None:
    known = KnownChats()
    raw = body(said("{[" * 15_000), said("?"))
    for _ in range(3):
        assert known_of(call(raw, known)) == 0
        assert known.size == 0


def test_a_chat_has_a_share_of_the_memory_at_most() -> None:
    known = KnownChats(memory=SHARE * 100_000)
    call(body(said("x" * 60_000), said("?")), known)
    assert known.size == 0
    call(body(said("x" * 30_000), said("?")), known)
    assert 0 < known.size <= 100_000


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_an_engine_gets_the_same_bytes_in_each_turn(encoding: str) -> None:
    known = KnownChats()
    turns = [said("x" * 20_000), said("y")]
    for more in (turns, [*turns, said("z")], [*turns, said("z"), said("!")]):
        raw = body(*more).decode().encode(encoding)
        assert told(raw, known) == told(raw)
        assert call(raw, known).body.encode("m") == body(*more)


def objects(count: int) -> list[Any]:
    return [{"a": {}} for _ in range(count)]


SHAPES: dict[str, Any] = {
    "letters": [said("x" * 4000) for _ in range(10)],
    "Latin": [said("é" * 4000) for _ in range(10)],
    "Chinese": [said("漢" * 4000) for _ in range(10)],
    "emoji": [said("😀" * 4000) for _ in range(10)],
    "letters and an emoji": [said("x" * 4000 + "😀") for _ in range(10)],
    "letters and a sign": [said("x" * 4000 + "漢") for _ in range(10)],
    "short messages": [said(f"{number} yes or no") for number in range(1000)],
    "objects": objects(9000),
    "lists": [{"a": [[1] for _ in range(9000)]}],
    "short texts": [{"a": [f"é漢{number}" for number in range(9000)]}],
    "numbers": [{"a": list(range(1000, 19_000))}],
    "fractions": [{"a": [number + 0.5 for number in range(9000)]}],
    "keys": [{f"key {number}": 1 for number in range(22_000)}],
    "calls": [{"tool_calls": [{"id": f"{number}", "function": {"name": "f"}}]} for number in range(3000)],
}


@pytest.mark.parametrize("escaped", [False, *slowly(True)])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_counted_is_what_it_takes(shape: str, escaped: bool) -> None:
    texts = [
        json.dumps({"model": f"{number}", "messages": [*SHAPES[shape], said("?")]}, ensure_ascii=escaped)
        for number in range(2)
    ]
    known = KnownChats()
    call(texts[0].encode(), known)  # what is made once
    gc.collect()
    before = known.size
    raw = texts[1].encode()
    tracemalloc.start()
    call(raw, known)
    gc.collect()
    real = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    counted = known.size - before
    assert 0.95 * real <= counted <= 1.9 * real


def test_what_is_remembered_is_bounded_and_what_is_in_use_stays() -> None:
    known = KnownChats(memory=40 * (OVERHEAD + 600), least=16, step=1)
    often = [said("often", "system"), said("x" * 100)]
    call(body(*often), known)
    for number in range(100):
        call(body(said(f"{number} " + "y" * 100), said("?")), known)
        assert known_of(call(body(*often, said("?")), known)) >= 2
        assert len(known._latest) + len(known._older) < 400
        assert known.size <= 20 * (OVERHEAD + 600)
    assert known_of(call(body(said("0 " + "y" * 100), said("!")), known)) == 0
