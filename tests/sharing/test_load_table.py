"""Covers: gateway/sharing/load_table.py, gateway/sharing/load_memory.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import ManualClock, SystemClock
from gateway.fleet.load.ledger import Ledger
from gateway.fleet.load.others import NOTHING, Row
from gateway.sharing import load_memory
from gateway.sharing.load_memory import LOG, REPLICAS, LoadMemory, TableFull
from gateway.sharing.load_table import LOOK, LoadTable
from gateway.sharing.messages import read, written
from tests.support.examples import examples
from tests.support.ledgers import reserve


class Host:
    """Workers in one process, each with a table on the same memory and ledgers of its own."""

    def __init__(self, workers: int, names: int) -> None:
        self.parent = LoadTable.create()
        self.tables = [LoadTable(self.parent.fd, number) for number in range(workers)]
        self.ledgers: list[dict[str, Ledger]] = []
        for table in self.tables:
            ledgers = {f"engine-{name}": Ledger(SystemClock()) for name in range(names)}
            self.ledgers.append(ledgers)
            for name, ledger in ledgers.items():
                table.bind(name, ledger)

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *exc: object) -> None:
        for table in (*self.tables, self.parent):
            table.close()


def test_decisions_in_quick_succession_look_once():
    with Host(2, 1) as host:
        (ours, theirs), looker = (ledgers["engine-0"] for ledgers in host.ledgers), host.tables[0]
        seen = []
        for now in (1.0, 1.0 + LOOK / 2, 1.0 + LOOK):
            reserve(theirs, 100, 100)
            looker.look(now)
            seen.append(ours.requests)
        assert seen == [1, 1, 3]


BOOKINGS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 5000), st.integers(0, 5000)), max_size=15
)


@given(bookings=BOOKINGS, seed=st.integers(0, 2**32))
@examples(60)
def test_each_worker_sees_the_sum_of_all_open_bookings(bookings, seed):
    order, running = Random(seed), []
    with Host(3, 3) as host:
        for worker, name, prefill, kv in bookings:
            running.append((reserve(host.ledgers[worker][f"engine-{name}"], prefill, kv), name, prefill, kv))
            if order.random() < 0.3:
                running.pop(order.randrange(len(running)))[0].settle()
            if order.random() < 0.3:
                order.choice(host.tables).catch_up()
        for table, ledgers in zip(host.tables, host.ledgers, strict=True):
            table.catch_up()
            for name in range(3):
                ledger, here = ledgers[f"engine-{name}"], [each for each in running if each[1] == name]
                assert ledger.requests == len(here)
                assert ledger.kv_tokens == sum(kv for *_, kv in here)
                assert ledger.prefill_tokens == sum(prefill for _, _, prefill, _ in here)
        for reservation, *_ in running:
            reservation.settle()
        for table, ledgers in zip(host.tables, host.ledgers, strict=True):
            table.catch_up()
            assert {ledger.requests for ledger in ledgers.values()} == {0}
            assert {ledger.prefill_attention for ledger in ledgers.values()} == {0.0}


def test_what_is_booked_in_a_turn_of_the_loop_is_written_at_its_end_or_with_a_decision():
    later = []
    parent = LoadTable.create()
    one, two = LoadTable(parent.fd, 0, soon=later.append), LoadTable(parent.fd, 1)
    mine, other = Ledger(SystemClock()), Ledger(SystemClock())
    one.bind("a", mine)
    two.bind("a", other)
    one.publish()
    first = reserve(mine, 100, 200)
    two.catch_up()
    assert other.requests == 0
    one.publish()
    two.catch_up()
    assert (other.requests, other.kv_tokens, other.prefill_tokens) == (1, 200, 100)
    first.settle()
    assert len(later) == 1
    later[0]()
    two.catch_up()
    assert (other.requests, other.kv_tokens, other.prefill_tokens) == (0, 0, 0)
    for table in (one, two, parent):
        table.close()


def test_a_reader_that_was_lapped_reads_all():
    with Host(2, 4) as host:
        open_ = [reserve(host.ledgers[0][f"engine-{name}"], 10, 20) for name in range(4)]
        for _ in range(LOG // 3):
            for each in open_:
                each.set_generated(each._generated + 1)
                host.tables[0].tick()
        host.tables[1].catch_up()
        assert [ledger.kv_tokens for ledger in host.ledgers[1].values()] == [20 + LOG // 3] * 4


def test_the_growth_of_answers_and_expired_prompts_are_told_by_a_tick():
    clock = ManualClock()
    parent = LoadTable.create()
    one, two = LoadTable(parent.fd, 0), LoadTable(parent.fd, 1)
    mine, other = Ledger(clock), Ledger(clock)
    one.bind("a", mine)
    two.bind("a", other)
    reserve(mine, 100, 200, expires_prefill_at=5.0).set_generated(30)
    clock.now = 6.0
    two.catch_up()
    assert (other.prefill_tokens, other.kv_tokens) == (100, 200)
    one.tick()
    two.tick()
    assert (other.prefill_tokens, other.kv_tokens) == (0, 230)
    for table in (one, two, parent):
        table.close()


def test_names_have_the_same_slot_everywhere_and_a_slot_rests_until_all_its_rows_are_zero(monkeypatch):
    monkeypatch.setattr(load_memory, "SLOTS", 2)
    parent = LoadTable.create()
    one, two = LoadTable(parent.fd, 0), LoadTable(parent.fd, 1)
    a, b, c = (Ledger(SystemClock()) for _ in range(3))
    other_a = Ledger(SystemClock())
    one.bind("a", a)
    two.bind("b", b)
    two.bind("a", other_a)
    kept = reserve(other_a, 10, 20)
    one.catch_up()
    assert a.requests == 1
    one.release("a", a)
    assert a.requests == 0
    with pytest.raises(TableFull):
        one.bind("c", c)
    two.release("a", other_a)  # its request runs on
    with pytest.raises(TableFull):
        one.bind("c", c)
    kept.settle()
    one.bind("c", c)  # has the slot of "a"
    assert c.requests == 0
    two.bind("c", other_a)
    reserve(c, 1, 2)
    two.catch_up()
    assert (other_a.requests, b.requests) == (1, 0)
    for table in (one, two, parent):
        table.close()


def test_a_name_with_two_ledgers_shows_the_sum_of_both():
    parent = LoadTable.create()
    one, two = LoadTable(parent.fd, 0), LoadTable(parent.fd, 1)
    old, new, other = (Ledger(SystemClock()) for _ in range(3))
    one.bind("a", old)
    two.bind("a", other)
    leaving = reserve(old, 10, 20)
    one.release("a", old)
    one.bind("a", new)
    reserve(new, 30, 40)
    two.catch_up()
    assert (other.requests, other.kv_tokens) == (2, 60)
    leaving.settle()
    two.catch_up()
    assert (other.requests, other.kv_tokens, old.others) == (1, 40, None)
    for table in (one, two, parent):
        table.close()


ROW = Row(2, 300, 100, 5000.0, 1.0, 60, 0.5, 0.75, 0.1, 1.5, 9.0, 7, 800)


def test_the_lead_writes_the_rows_of_replicas_and_tells_them_what_its_host_has():
    with Host(2, 2) as host:
        lead, worker = host.tables
        ledger = host.ledgers[1]["engine-0"]
        assert lead.write(REPLICAS[3], "engine-0", ROW)
        assert not lead.write(REPLICAS[3], "nobody's", ROW)
        worker.catch_up()
        assert (ledger.requests, ledger.kv_tokens, ledger.prefill_tokens) == (2, 300, 100)
        cursor, rows = lead.changed(None)
        assert rows == {}  # not what it has from others
        reserve(ledger, 10, 20)
        reserve(host.ledgers[0]["engine-0"], 30, 40)
        cursor, rows = lead.changed(cursor)
        assert {name: row[:3] for name, row in rows.items()} == {"engine-0": (2, 60, 40)}
        cursor, rows = lead.changed(cursor)
        assert rows == {}
        assert set(lead.changed(None)[1]) == {"engine-0"}
        lead.clear(REPLICAS[3])
        worker.catch_up()
        assert ledger.requests == 2


def test_a_row_that_crosses_hosts_has_ages():
    (load,) = written([("e", ROW)], 10.0)
    assert read(load, 10.0) == ROW
    there = read(load, 1010.0)
    assert (there.first_booked, there.ended, there.share_at) == (1001.0, 1000.75, 1001.5)
    assert there[:4] == ROW[:4]


WORKER = """
import sys
from gateway.core.clock import SystemClock
from gateway.fleet.load.ledger import Ledger
from gateway.sharing.load_table import LoadTable
from tests.support.ledgers import reserve
table = LoadTable(int(sys.argv[1]), int(sys.argv[2]))
ledger = Ledger(SystemClock())
table.bind("engine", ledger)
held = []
print("ready", flush=True)
for line in sys.stdin:
    if line == "book\\n":
        held.append(reserve(ledger, 100, 200))
    elif line == "settle\\n":
        held.pop().settle()
    table.catch_up()
    print(ledger.requests, ledger.kv_tokens, ledger.prefill_tokens, flush=True)
"""


class Worker:
    def __init__(self, fd: int, number: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(fd), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[fd],
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, what: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.line()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.end()

    def end(self) -> None:
        self.process.communicate()


def test_processes_see_each_other_and_one_that_is_killed_leaves_nothing():
    parent = LoadTable.create()
    workers = [Worker(parent.fd, number) for number in range(2)]
    try:
        assert [worker.line() for worker in workers] == ["ready"] * 2
        assert workers[0].ask("book") == "1 200 100"
        assert workers[1].ask("book") == "2 400 200"
        assert workers[0].ask("settle") == "1 200 100"
        assert parent.reap() == []
        workers[1].kill()
        assert parent.reap() == [1]
        assert parent.reap() == []
        assert workers[0].ask("look") == "0 0 0"
        # Its successor begins with zero rows, whether anybody has reaped them or not.
        workers[1] = Worker(parent.fd, 1)
        assert workers[1].line() == "ready"
        assert workers[1].ask("book") == "1 200 100"
        workers[1].kill()
        workers[1] = Worker(parent.fd, 1)
        assert workers[1].line() == "ready"
        assert workers[0].ask("look") == "0 0 0"
        assert workers[1].ask("look") == "0 0 0"
    finally:
        for worker in workers:
            worker.end()
        parent.close()


def test_two_processes_cannot_be_the_same_writer(monkeypatch):
    monkeypatch.setattr(load_memory, "ATTEMPTS", 3)
    parent = LoadTable.create(0)
    with pytest.raises(TableFull):
        LoadTable(parent.fd, 0)
    parent.close()


def test_a_table_that_is_closed_leaves_its_ledgers_alone():
    with Host(2, 1) as host:
        reserve(host.ledgers[0]["engine-0"], 10, 20)
        reserve(host.ledgers[1]["engine-0"], 10, 20)
        host.tables[0].catch_up()
        closed = host.tables.pop(0)
        closed.close()
        assert (host.ledgers[0]["engine-0"].requests, host.ledgers[0]["engine-0"].others) == (1, None)
        host.tables[0].catch_up()
        assert host.ledgers[1]["engine-0"].requests == 1
        assert Row() == NOTHING


def test_who_has_closed_is_that_writer_no_more_though_its_process_lives(monkeypatch):
    monkeypatch.setattr(load_memory, "ATTEMPTS", 3)
    fd = LoadMemory.create()
    first, second = LoadMemory(fd), LoadMemory(fd)
    first.claim(1)
    with pytest.raises(TableFull):
        second.claim(1)
    first.close()
    second.claim(1)
    second.close()
    os.close(fd)


def test_workers_that_start_at_once_are_counted_one_after_the_other(monkeypatch):
    """Else one could take another's place in the count back, and the other's rows would not be read."""
    monkeypatch.setattr(load_memory, "ATTEMPTS", 3)
    fd = LoadMemory.create()
    one, other = LoadMemory(fd), LoadMemory(fd)
    one._lock(load_memory.SLOT_LOCK)
    with pytest.raises(TableFull):
        other.claim(2)
    one._unlock(load_memory.SLOT_LOCK)
    other.claim(2)
    one.claim(1)
    assert one.workers == 3
    one.close()
    other.close()
    os.close(fd)
