"""Messages of replicas: whatever arrives is a message within bounds, or is dropped for a reason."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.load.others import NOTHING, Row
from gateway.sharing.messages import (
    MOST,
    MOST_BYTES,
    MOST_CHARGES,
    MOST_ROWS,
    VERSION,
    Bye,
    Charged,
    Dropped,
    Hello,
    Load,
    Loads,
    decode,
    encode,
    is_idle,
    read,
    written,
)

ROW = Row(3, 1000, 500, 125_000.0, 90.0, 200, 0.25, 89.0, 0.5, 99.5, 12.0, 7, 7000)
HEAD = (VERSION, "r", 5, 1)


def reason(data: bytes) -> str:
    with pytest.raises(Dropped) as dropped:
        decode(data)
    return str(dropped.value)


@pytest.mark.parametrize(
    "message",
    [
        Hello(*HEAD, place="a:8000"),
        Loads(*HEAD, True, written([("e", ROW)], 100.0)),
        Loads(*HEAD, True, (), (Charged("m", -1, "red", 2.5),)),
        Bye(*HEAD),
    ],
)
def test_what_is_encoded_is_decoded(message):
    assert decode(encode(message)) == message


def test_ages_cross_hosts_and_times_do_not():
    [load] = written([("e", ROW)], 100.0)
    assert (load.first_booked, load.ended, load.share_at) == (10.0, 11.0, 0.5)
    assert read(load, 100.0) == ROW
    there = read(load, 7000.0)
    assert (there.first_booked, there.ended, there.share_at) == (6990.0, 6989.0, 6999.5)
    assert there._replace(first_booked=90.0, ended=89.0, share_at=99.5) == ROW


def test_what_a_later_version_adds_is_ignored_and_what_an_earlier_lacks_is_a_default():
    data = msgspec.msgpack.encode(["loads", *HEAD, False, [["e", 1, 2, *[0] * 11, "new"], ["f"]], [], "new", {"x": 1}])
    message = decode(data)
    assert isinstance(message, Loads)
    assert [(load.name, load.requests, load.kv_tokens) for load in message.rows] == [("e", 1, 2), ("f", 0, 0)]
    assert decode(msgspec.msgpack.encode(["hello", *HEAD])) == Hello(*HEAD)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (["loads", VERSION + 1, "r", 5, 1, False, []], "version"),
        (["loads", VERSION + 1, {"another": "form"}], "version"),
        (["a later kind", VERSION + 1], "version"),
        (["unknown", *HEAD], "garbage"),
        (["loads", VERSION], "garbage"),
        (["loads", VERSION, "", 5, 1], "garbage"),
        (["loads", VERSION, "r" * 65, 5, 1], "garbage"),
        (["loads", VERSION, "r", -5, 1], "garbage"),
        (["loads", VERSION, "r", 5, 0], "garbage"),
        (["loads", VERSION, "r", 5, 1 << 62], "garbage"),
        (["loads", *HEAD, False, [["e", "many"]]], "garbage"),
        (["loads", *HEAD, False, [["e" * 257]]], "garbage"),
        (["loads", *HEAD, False, [["e"]] * (MOST_ROWS + 1)], "garbage"),
        ("text", "garbage"),
        (None, "garbage"),
    ],
)
def test_what_is_no_message_is_dropped(message, why):
    assert reason(msgspec.msgpack.encode(message)) == why


def test_bytes_that_are_no_message_are_dropped():
    assert reason(b"") == "garbage"
    assert reason(b"\x91" * 100_000) == "garbage"  # nested without an end
    assert reason(b"\x95\xa5hello\x01\xa2\xff\xff\x05\x01") == "garbage"
    assert reason(bytes(MOST_BYTES + 1)) == "huge"
    rows = tuple(Load("e" * 80, *ROW) for _ in range(MOST_ROWS))
    charges = tuple(Charged("m" * 80, 0, "\U0001f600" * 256, 1.0) for _ in range(MOST_CHARGES))
    assert len(encode(Loads(*HEAD, True, rows, charges))) < MOST_BYTES


def test_figures_are_within_bounds():
    load = Load("e", math.inf, -1, math.nan, *[math.nan] * 10)
    row = read(load, 100.0)
    assert row[:3] == (int(MOST), 0, 0)
    assert all(math.isfinite(figure) for figure in row)
    assert read(Load("e", 1e300), 0.0).requests == int(MOST)


def test_a_row_without_waiting_prompts_has_none():
    row = read(Load("e", 1, 10, 0, 5.0, 6.0, 7, 8.0), 100.0)
    assert row[:7] == (1, 10, 0, 0.0, 100.0, 0, 0.0)


def test_idle_is_who_has_no_work_and_had_none_lately():
    assert is_idle(NOTHING, 100.0)
    assert is_idle(Row(settled=5, settled_tokens=9, prefilled=3.0), 100.0)
    assert not is_idle(Row(requests=1), 100.0)
    assert not is_idle(Row(share=0.5, share_at=99.0), 100.0)
    assert is_idle(Row(share=0.5, share_at=9.0), 100.0)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)
LIKE = st.tuples(
    *(st.sampled_from(["hello", "loads", "bye"]), st.just(VERSION) | PLAIN, st.just("r") | PLAIN),
    *(st.integers(0, 9) | PLAIN, st.integers(0, 9) | PLAIN, st.booleans() | PLAIN),
    st.lists(st.lists(st.just("e") | st.floats() | st.integers(-5, 2**63), max_size=16), max_size=3) | PLAIN,
)


@given(st.binary(max_size=200) | st.builds(msgspec.msgpack.encode, PLAIN | LIKE), st.floats(0, 1e9))
def test_whatever_arrives_is_a_message_or_is_dropped(data, now):
    try:
        message = decode(data)
    except Dropped:
        return
    if isinstance(message, Loads):
        for load in message.rows:
            row = read(load, now)
            assert all(math.isfinite(figure) for figure in row)
            assert min(row[:4]) >= 0
