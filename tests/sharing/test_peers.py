"""Other replicas: their rows are in the table while they talk, fade while they do not, and go with them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.load.others import Row
from gateway.sharing.messages import VERSION, Bye, Dropped, Hello, Load, Loads
from gateway.sharing.peers import FRESH, GONE, HALF_LIFE, STALE, Peers, faded
from tests.sharing.plain_table import PlainTable


def loads(sequence: int, *rows: Load, whole: bool = False, replica: str = "b", incarnation: int = 1) -> Loads:
    return Loads(VERSION, replica, incarnation, sequence, whole, rows)


def hello(sequence: int, replica: str = "b", incarnation: int = 1) -> Hello:
    return Hello(VERSION, replica, incarnation, sequence)


def bye(sequence: int, replica: str = "b", incarnation: int = 1) -> Bye:
    return Bye(VERSION, replica, incarnation, sequence)


@pytest.fixture
def table() -> PlainTable:
    return PlainTable()


@pytest.fixture
def peers(table: PlainTable) -> Peers:
    return Peers(table, "a", range(256, 258))


def dropped(peers: Peers, message, now: float = 1.0) -> str:
    with pytest.raises(Dropped) as why:
        peers.take(message, now)
    return str(why.value)


def test_rows_replace_rows(peers, table):
    peers.take(loads(1, Load("x", 3), Load("y", 1)), 1.0)
    peers.take(loads(2, Load("x", 2)), 1.1)
    peers.take(loads(1, Load("x", 5), replica="c"), 1.1)
    assert (table.requests("x"), table.requests("y")) == (7, 1)
    peers.take(loads(3, Load("x", 1), whole=True), 1.2)
    assert (table.requests("x"), table.requests("y")) == (6, 0)
    assert peers.states(1.2) == {"fresh": 2, "stale": 0}


def test_own_messages_are_ignored(peers, table):
    peers.take(loads(1, Load("x", 3), replica="a"), 1.0)
    assert table.rows == {}
    assert len(peers) == 0


def test_a_message_that_comes_again_or_late_is_dropped(peers, table):
    peers.take(loads(5, Load("x", 3)), 1.0)
    assert dropped(peers, loads(5, Load("x", 9))) == "old"
    assert dropped(peers, loads(4, Load("x", 9))) == "old"
    assert dropped(peers, bye(5)) == "old"
    assert table.requests("x") == 3


def test_who_has_missed_something_asks(peers):
    assert peers.take(loads(7, Load("x", 3)), 1.0), "the first that is heard of it"
    assert not peers.take(loads(8), 1.0)
    assert peers.take(loads(10), 1.0)
    assert not peers.take(loads(20, whole=True), 1.0)
    assert not peers.take(hello(1, "c"), 1.0), "all its rows follow"
    assert not peers.take(loads(2, replica="c"), 1.0)


def test_another_process_that_speaks_for_a_replica_replaces_the_one_before(peers, table):
    peers.take(loads(5, Load("x", 3), Load("y", 3)), 1.0)
    peers.take(loads(1, Load("x", 1), incarnation=2), 1.0)
    assert (table.requests("x"), table.requests("y")) == (1, 0)
    assert dropped(peers, loads(6, Load("x", 9))) == "old"
    assert dropped(peers, bye(7)) == "old"
    assert table.requests("x") == 1


def test_with_its_goodbye_a_replica_and_its_work_are_gone(peers, table):
    peers.take(loads(1, Load("x", 3)), 1.0)
    peers.take(bye(2), 1.0)
    assert table.requests("x") == 0
    assert len(peers) == 0
    assert dropped(peers, loads(3, Load("x", 9))) == "old"
    peers.take(loads(1, Load("x", 2), incarnation=2), 1.0)
    assert table.requests("x") == 2
    peers.take(bye(1, "never heard"), 1.0)


def test_rows_of_who_is_silent_fade_and_go(peers, table):
    peers.take(loads(1, Load("x", 100, 1000)), 1.0)
    peers.look(1.0 + FRESH)
    assert table.requests("x") == 100
    peers.look(1.0 + FRESH + HALF_LIFE)
    assert table.requests("x") == 50
    assert peers.states(1.0 + STALE + 0.1) == {"fresh": 0, "stale": 1}
    assert peers.seen(1.0 + STALE + 0.1)[0].state == "stale"
    peers.look(1.0 + GONE)
    assert table.requests("x") == 0
    assert len(peers) == 0
    assert dropped(peers, loads(1, Load("x", 100))) == "old", "a message of the past does not bring it back"
    peers.take(loads(2, Load("x", 100)), 9.0)
    assert table.requests("x") == 100


def test_who_talks_again_has_all_its_rows_again(peers, table):
    peers.take(loads(1, Load("x", 100), Load("y", 10)), 1.0)
    peers.look(1.0 + FRESH + HALF_LIFE)
    assert table.requests("y") == 5
    peers.take(loads(2, Load("x", 99)), 2.0)
    assert (table.requests("x"), table.requests("y")) == (99, 10)


def test_who_has_no_work_may_be_silent(peers, table):
    peers.take(loads(1, Load("x", 2)), 1.0)
    peers.take(loads(2, Load("x", 0, settled=2)), 1.1)
    written = table.written
    peers.look(1.9)
    assert table.written == written
    assert peers.unseen(1.9, 0.0) == 0.0


def test_what_no_engine_of_ours_has_is_no_row(peers, table):
    table.names = {"x"}
    peers.take(loads(1, Load("x", 1), Load("other", 5)), 1.0)
    assert peers.seen(1.0)[0].endpoints == 1


def test_there_are_not_too_many(peers, table):
    for replica in ("b", "c"):
        peers.take(loads(1, Load("x", 1), replica=replica), 1.0)
    assert dropped(peers, loads(1, replica="d")) == "replicas"
    peers.take(bye(2, "c"), 1.0)
    peers.take(loads(2, Load("x", 5), replica="d"), 1.0)
    assert table.requests("x") == 6
    peers.clear()
    assert table.requests("x") == 0


def test_who_left_is_remembered_within_bounds(peers):
    for number in range(3000):
        peers.take(hello(1, f"r{number}"), 1.0)
        peers.take(bye(2, f"r{number}"), 1.0)
    assert len(peers._departed) <= 1024


def test_what_cannot_be_seen_grows_with_their_pace_and_with_silence(peers):
    peers.take(loads(1, whole=True), 0.0)
    for step in range(1, 601):  # 100 requests a second, for 6 s
        peers.take(loads(1 + step, Load("x", 5, settled=step)), step / 100)
    assert peers.unseen(6.0, 0.003) == pytest.approx(0.3, rel=0.1)
    assert peers.unseen(6.5, 0.003) == pytest.approx(50, rel=0.1)
    assert peers.unseen(8.5, 0.003) == pytest.approx(100, rel=0.1), "what is older is in the engines' scrapes"


def test_an_unchanged_row_is_not_written_again(peers, table):
    row = Load("x", 3, 10, 5, 5.0, 0.5, 5, 0.1, 0.7, 0.2, 0.3)
    peers.take(loads(1, row), 1.0)
    written = table.written
    peers.take(loads(2, row, whole=True), 1.0004)
    assert table.written == written


def test_what_has_ended_does_not_fade():
    row = Row(4, 100, 50, 60.0, 1.0, 20, 0.5, 2.0, 0.4, 3.0, 7.0, 8, 900)
    assert faded(row, 0.5) == Row(2, 50, 25, 30.0, 1.0, 10, 0.25, 2.0, 0.2, 3.0, 7.0, 8, 900)


NAMES = ("x", "y", "z")
STEP = st.tuples(
    *(st.sampled_from(["b", "c"]), st.sampled_from(["load", "whole", "hello", "bye", "restart", "again"])),
    *(st.sampled_from(NAMES), st.integers(0, 5), st.floats(0.0, 4.0)),
)


@given(st.lists(STEP, max_size=40))
def test_after_a_whole_picture_the_table_is_as_its_sender_says_whatever_came_before(steps):
    """Messages that come again, late or of processes of the past; silences; ends and restarts."""
    table, now, sent = PlainTable(), 0.0, []
    peers = Peers(table, "a", range(256, 320))
    truth = {"b": {}, "c": {}}
    counters = {"b": [1, 0], "c": [1, 0]}  # incarnation, sequence

    def give(message):
        with contextlib.suppress(Dropped):
            peers.take(message, now)

    for replica, what, name, requests, pause in steps:
        now += pause
        peers.look(now)
        count = counters[replica]
        if what == "again" and sent:
            give(sent[requests % len(sent)])
            continue
        if what == "restart":
            counters[replica], truth[replica] = [count[0] + 1, 0], {}
            continue
        count[1] += 1
        head = {"replica": replica, "incarnation": count[0]}
        if what == "load":
            truth[replica][name] = requests
            message = loads(count[1], Load(name, requests), **head)
        elif what == "whole":
            rows = [Load(one, number) for one, number in truth[replica].items() if number]
            message = loads(count[1], *rows, whole=True, **head)
        elif what == "hello":
            message = hello(count[1], **head)
        else:
            message = bye(count[1], **head)
            counters[replica], truth[replica] = [count[0] + 1, 0], {}
        sent.append(message)
        give(message)
    for replica, count in counters.items():
        rows = [Load(one, number) for one, number in truth[replica].items() if number]
        peers.take(loads(count[1] + 1, *rows, whole=True, replica=replica, incarnation=count[0]), now)
    for name in NAMES:
        assert table.requests(name) == sum(one.get(name, 0) for one in truth.values())


def test_bookings_on_engines_that_are_none_of_ours_are_not_missed() -> None:
    """Replicas of two configurations, while one is rolled out: each change there would count all that runs there."""
    table = PlainTable({"x"})
    peers = Peers(table, "a", range(256, 258))
    for sequence in range(1, 101):
        peers.take(loads(sequence, Load("y", 20 + sequence % 2)), 1.0 + sequence / 200)
    assert peers.rate == 0.0
    peers.take(loads(101, Load("x", 3)), 1.5)
    assert peers.rate == 3.0
