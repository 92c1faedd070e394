"""Mooncake's format: what is read, what is refused, and how time is scaled."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ConfigError
from gateway.replay.mooncake import BLOCK_TOKENS, Line, Trace, read, sessions, spread

EXCERPT = Path(__file__).parents[1] / "data" / "replay" / "mooncake_conversation.jsonl"


def line(**other: object) -> dict[str, object]:
    return {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [1, 2], **other}


def write(folder: Path, *lines: object) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines))
    return path


def test_the_published_trace_is_read() -> None:
    lines = read(EXCERPT)
    assert len(lines) == 200
    assert (lines[0].at, lines[0].input_tokens, lines[0].output_tokens) == (0.0, 6758, 500)
    assert lines[0].blocks == tuple(range(14))  # numbered as the file has them
    assert lines[1].blocks[:2] == (0, 14)  # one system prompt, then its own
    assert all(-(-one.input_tokens // BLOCK_TOKENS) == len(one.blocks) for one in lines)


def test_the_first_lines_only() -> None:
    assert read(EXCERPT, first=7) == read(EXCERPT)[:7]


def test_lines_are_put_in_order_and_blank_ones_skipped(tmp_path) -> None:
    lines = read(write(tmp_path, line(timestamp=2500), "", line(timestamp=0)))
    assert [one.at for one in lines] == [0.0, 2.5]


def test_ids_of_any_size_become_small_numbers(tmp_path) -> None:
    big = 1 << 63
    lines = read(write(tmp_path, line(hash_ids=[big, -5]), line(hash_ids=[big, big + 1])))
    assert [one.blocks for one in lines] == [(0, 1), (0, 2)]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("{", "not JSON"),
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
        (line(hash_ids=None), "hash_ids must be a list, found nothing"),
        (line(hash_ids=[1]), "hash_ids must have 2 ids for an input_length of 700, one for each 512 tokens, found 1"),
        (line(hash_ids=[1, "2"]), "hash_ids[1] must be an integer, found '2'"),
        (line(hash_ids=[1, True]), "hash_ids[1] must be an integer, found True"),
        (line(hash_ids=[1, 1]), "hash_ids[1]: 1 follows another id than on line 1"),
        (line(session=1.5), "session must be a text or an integer, found 1.5"),
        (line(chat_id=True), "chat_id must be a text or an integer, found True"),
        (line(chat_id=1, parent_chat_id=[]), "parent_chat_id must be a text or an integer, found a list"),
        (line(priority="high"), "priority must be an integer in -2147483648..2147483648, found 'high'"),
        (line(priority=1 << 40), "priority must be an integer"),
        (line(**{"class": ["batch"]}), "class must be a text or an integer, found a list"),
        (line(hash_ids=[3, 2]), "hash_ids[1]: 2 follows another id than on line 1"),
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


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.integers(0, 5))
def test_spreading_keeps_each_batch_before_the_next(times, seed) -> None:
    times = sorted(times)
    moved = spread(times, random.Random(seed))
    assert moved == sorted(moved)
    later = dict(pairwise(sorted(set(times))))
    for at, new in zip(times, moved, strict=True):
        assert new >= at
        if at in later:
            assert new <= later[at]


def test_batches_are_spread_over_their_width_and_not_over_a_pause() -> None:
    times = [0.0] * 500 + [3.0] * 500 + [6.0] * 500 + [600.0] * 500
    moved = spread(times, random.Random(1))
    for begin, part in zip((0, 3, 6, 600), (moved[i : i + 500] for i in range(0, 2000, 500)), strict=True):
        assert begin <= part[0] < begin + 0.1
        assert begin + 2.9 < part[-1] < begin + 3


def test_time_is_scaled_to_the_rate() -> None:
    lines = read(EXCERPT)
    calls = Trace("excerpt", lines, rate=3.6, seed=1).start()
    assert calls[0].at == 0.0
    assert (len(calls) - 1) / calls[-1].at == pytest.approx(3.6)
    assert [call.at for call in calls] == sorted(call.at for call in calls)
    faster = Trace("excerpt", lines, rate=7.2, seed=1).start()
    assert [call.at for call in faster] == pytest.approx([call.at / 2 for call in calls])


def test_without_a_rate_it_keeps_its_pace() -> None:
    calls = Trace("excerpt", read(EXCERPT), seed=1).start()
    assert calls[-1].at == pytest.approx(read(EXCERPT)[-1].at, abs=3.1)


def test_a_seed_is_one_workload() -> None:
    lines = read(EXCERPT)
    times = [[call.at for call in Trace("excerpt", lines, rate=1, seed=seed).start()] for seed in (1, 1, 2)]
    assert times[0] == times[1] != times[2]


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_must_be_above_0(rate) -> None:
    with pytest.raises(ConfigError, match="the rate must be above 0"):
        Trace("excerpt", read(EXCERPT), rate=rate)


def test_one_instant_has_no_load_to_scale() -> None:
    with pytest.raises(ConfigError, match="all 2 requests come at once"):
        Trace("burst", [Line(1.0, 1, 1, (0,)), Line(1.0, 1, 1, (1,))], rate=1)


def test_a_session_is_what_follows_the_shared_system_prompt() -> None:
    chats = [Line(0.0, 1200, 1, (0, 1 + user, 100 + user + 50 * turn)) for turn in range(3) for user in range(30)]
    named = sessions(chats)
    assert len(set(named)) == 30
    assert named[:30] == named[30:60] == named[60:]


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


def test_a_chat_id_alone_is_the_conversation_s(tmp_path) -> None:
    lines = read(write(tmp_path, line(chat_id="a"), line(chat_id="b"), line(chat_id="a", session=None)))
    assert sessions(lines) == ["a", "b", "a"]


def test_a_line_may_have_a_class_and_a_priority(tmp_path) -> None:
    lines = [line(), line(**{"class": "batch"}), line(priority=5), line(**{"class": 2}, priority=-1)]
    calls = Trace("classes", read(write(tmp_path, *lines))).start()
    assert [(call.traffic, call.priority) for call in calls] == [("", 0), ("batch", 0), ("priority 5", 5), ("2", -1)]


def test_nothing_follows_an_answer() -> None:
    trace = Trace("excerpt", read(EXCERPT))
    assert trace.answered(trace.start()[0], 5.0) == ()
