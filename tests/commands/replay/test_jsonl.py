"""Covers: gateway/commands/replay/jsonl.py, gateway/commands/replay/sources.py.

Lines of JSON: what is read, and what is refused.
"""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.commands.replay.jsonl import BLOCK_SIZES
from gateway.commands.replay.recording import Trace, sessions
from gateway.commands.replay.sources import read
from gateway.errors import ConfigError

EXCERPT = Path(__file__).parents[2] / "data" / "replay" / "mooncake_conversation.jsonl"


def line(**other: object) -> dict[str, object]:
    return {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [1, 2], **other}


def write(folder: Path, *lines: object) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines))
    return path


def test_the_published_trace_is_read() -> None:
    whole = read(EXCERPT)
    lines = whole.lines
    assert (len(lines), whole.block_size, whole.prefixes) == (200, 512, True)
    assert (lines[0].at, lines[0].input_tokens, lines[0].output_tokens) == (0.0, 6758, 500)
    assert lines[0].blocks == tuple(range(14))  # numbered as the file has them
    assert lines[1].blocks[:2] == (0, 14)  # one system prompt, then its own
    assert all(-(-one.input_tokens // 512) == len(one.blocks) for one in lines)


def test_the_first_lines_only() -> None:
    first, whole = read(EXCERPT, first=7), read(EXCERPT)
    assert [astuple(one) for one in first.lines] == [astuple(one) for one in whole.lines[:7]]


def test_lines_are_put_in_order_and_blank_ones_skipped(tmp_path) -> None:
    lines = read(write(tmp_path, line(timestamp=2500), "", line(timestamp=0))).lines
    assert [one.at for one in lines] == [0.0, 2.5]


def test_ids_of_any_size_become_small_numbers(tmp_path) -> None:
    big = 1 << 63
    lines = read(write(tmp_path, line(hash_ids=[big, -5]), line(hash_ids=[big, big + 1]))).lines
    assert [one.blocks for one in lines] == [(0, 1), (0, 2)]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("{", "not JSON"),
        (line(hash_ids={}), "hash_ids must be a list, found a mapping"),
        ("[" * 100_000, "not JSON"),
        ("[]", "expected an object, found a list"),
        (line(timestamp=-1), "timestamp must be milliseconds of at least 0, found -1"),
        (line(timestamp=True), "timestamp must be milliseconds"),
        ('{"timestamp": NaN}', "timestamp must be milliseconds"),
        (line(timestamp=None), "timestamp must be milliseconds of at least 0, found nothing"),
        (line(input_length=0), "input_length must be an integer in 1..16777216, found 0"),
        (line(input_length=1.5), "input_length must be an integer"),
        (line(output_length="5"), "output_length must be an integer in 1..16777216, found '5'"),
        (line(output_length=1 << 30), "output_length must be an integer"),
        (line(hash_ids=None), "hash_ids must be a list, found nothing: line 1 has them, so all must"),
        (line(hash_ids=[1]), "hash_ids must have 2 ids for an input_length of 700, one for each 512 tokens, found 1"),
        (line(hash_ids=[1, "2"]), "hash_ids[1] must be an integer, found '2'"),
        (line(hash_ids=[1, True]), "hash_ids[1] must be an integer, found True"),
        (line(session=1.5), "session must be a text or an integer, found 1.5"),
        (line(chat_id=True), "chat_id must be a text or an integer, found True"),
        (line(chat_id=1, parent_chat_id=[]), "parent_chat_id must be a text or an integer, found a list"),
        (line(priority="high"), "priority must be an integer in -2147483648..2147483648, found 'high'"),
        (line(priority=1 << 40), "priority must be an integer"),
        (line(**{"class": ["batch"]}), "class must be a text or an integer, found a list"),
    ],
)
def test_an_error_names_the_line_and_the_culprit(tmp_path, wrong, said) -> None:
    path = write(tmp_path, line(), "", wrong)
    with pytest.raises(ConfigError) as error:
        read(path)
    assert error.value.message.startswith(f"{path}:3: ")
    assert said in error.value.message


def test_files_that_are_no_traces(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl: cannot be read: No such file"):
        read(tmp_path / "nowhere.jsonl")
    with pytest.raises(ConfigError, match="has no requests"):
        read(write(tmp_path, ""))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8: byte 0xff"):
        read(tmp_path / "bytes")


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(tmp_path_factory, text) -> None:
    path = tmp_path_factory.mktemp("any") / "trace.jsonl"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ConfigError, match=r"trace\.jsonl"):
        read(path)


def test_a_session_that_a_line_names_is_used(tmp_path) -> None:
    """More than 40 calls begin alike, so that their blocks would be taken for a template."""
    named = [line(timestamp=n, session=n // 50, hash_ids=[1, 10 + n // 50]) for n in range(100)]
    calls = Trace("named", read(write(tmp_path, *named))).start()
    assert [call.session for call in calls] == ["0"] * 50 + ["1"] * 50


def test_a_line_without_a_session_among_lines_that_have_one_has_none(tmp_path) -> None:
    lines = read(write(tmp_path, line(session="a"), line(timestamp=1), line(timestamp=2, session="")))
    assert sessions(lines) == ["a", None, None]


def test_a_conversation_is_all_that_goes_back_to_one_request(tmp_path) -> None:
    chats = [(7, -1), (8, 7), (9, -1), (10, 8), (11, 99), (12, 99), (13, 12)]
    lines = read(write(tmp_path, *(line(chat_id=chat, parent_chat_id=parent) for chat, parent in chats)))
    assert sessions(lines) == ["7", "7", "9", "7", "99", "99", "99"]


def test_bailian_s_times_are_seconds(tmp_path) -> None:
    """Qwen's Bailian: a chat for each request, blocks of 16 tokens."""
    chats = [
        {"chat_id": 159 + n, "parent_chat_id": -1 if n == 0 else 158 + n, "timestamp": 61.114 + n, "input_length": 40,
         "output_length": 132, "type": "text", "turn": n + 1, "hash_ids": [1089, 1090, 1091 + n]} for n in range(3)
    ]  # fmt: skip
    whole = read(write(tmp_path, *chats))
    assert whole.block_size == 16
    assert [one.at for one in whole.lines] == [61.114, 62.114, 63.114]
    assert sessions(whole) == ["159"] * 3
    with pytest.raises(ConfigError, match=r":2: timestamp must be seconds of at least 0, found 'now'"):
        read(write(tmp_path, chats[0], {**chats[1], "timestamp": "now"}))


def test_a_chat_id_alone_is_the_conversation_s(tmp_path) -> None:
    lines = read(write(tmp_path, line(chat_id="a"), line(chat_id="b"), line(chat_id="a", session=None)))
    assert sessions(lines) == ["a", "b", "a"]


def test_a_line_may_have_a_class_and_a_priority(tmp_path) -> None:
    lines = [line(), line(**{"class": "batch"}), line(priority=5), line(**{"class": 2}, priority=-1)]
    calls = Trace("classes", read(write(tmp_path, *lines))).start()
    assert [(call.traffic, call.priority) for call in calls] == [("", 0), ("batch", 0), ("priority 5", 5), ("2", -1)]


def blocks(tokens: int, size: int, of: int) -> list[int]:
    return list(range(of * 1_000_000, of * 1_000_000 - (-tokens // size)))


@given(
    st.sampled_from(BLOCK_SIZES),
    st.booleans(),
    st.lists(st.tuples(st.integers(1, 20_000), st.integers(1, 2_000)), min_size=1, max_size=12),
)
def test_a_block_s_size_follows_from_the_ids(tmp_path_factory, size, answers, lengths) -> None:
    """The largest that fits all lines; and one that fits, whatever else they are."""
    path = tmp_path_factory.mktemp("any")
    lines = [
        line(
            timestamp=n, input_length=prompt, output_length=output, hash_ids=blocks(prompt + output * answers, size, n)
        )
        for n, (prompt, output) in enumerate(lengths)
    ]
    whole = read(write(path, *lines))
    ids = [len(one.blocks) for one in whole.lines]
    fits = [[-(-prompt // whole.block_size) for prompt, _ in lengths]]
    fits.append([-(-(prompt + output) // whole.block_size) for prompt, output in lengths])
    assert ids in fits
    assert whole.block_size >= size or answers
    # One prompt of a thousand tokens tells sizes apart.
    if not answers and any(prompt > 1024 for prompt, _ in lengths):
        assert whole.block_size == size


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=8))
def test_what_is_shared_is_what_begins_alike(tmp_path_factory, prompts) -> None:
    """Also where an id stands for its block only, and comes again behind others."""
    path = tmp_path_factory.mktemp("any")
    lines = [line(timestamp=n, input_length=512 * len(ids), hash_ids=ids) for n, ids in enumerate(prompts)]
    read_back = [one.blocks for one in read(write(path, *lines)).lines]
    for ours, mine in zip(prompts, read_back, strict=True):
        for theirs, other in zip(prompts, read_back, strict=True):
            same = sum(1 for n in range(1, min(len(ours), len(theirs)) + 1) if ours[:n] == theirs[:n])
            assert len(set(mine) & set(other)) == same


def test_the_answer_s_blocks_may_be_there(tmp_path) -> None:
    lines = [line(output_length=1000, hash_ids=[1, 2, 3, 4]), line(output_length=1000, hash_ids=[1, 2, 3, 5])]
    whole = read(write(tmp_path, *lines))
    assert whole.block_size == 512
    assert [one.blocks for one in whole.lines] == [(0, 1, 2, 3), (0, 1, 2, 4)]


def test_all_lines_have_blocks_of_one_size(tmp_path) -> None:
    with pytest.raises(
        ConfigError, match="must have 44 ids for an input_length of 700, one for each 16 tokens, found 2"
    ):
        read(write(tmp_path, line(hash_ids=list(range(44))), line(timestamp=1)))


def test_lengths_alone_share_nothing_in_blocks_of_16(tmp_path) -> None:
    lengths = [{"timestamp": n, "input_length": 33, "output_length": 5} for n in range(3)]
    whole = read(write(tmp_path, *lengths))
    assert (whole.block_size, whole.prefixes) == (16, False)
    assert [list(one.blocks) for one in whole.lines] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    with pytest.raises(ConfigError, match=r":2: hash_ids are of no use here: line 1 has none"):
        read(write(tmp_path, lengths[0], line()))
