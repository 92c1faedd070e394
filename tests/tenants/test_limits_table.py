from __future__ import annotations

import os

import pytest

from gateway.tenants.limits_layout import ACCOUNTS, METERS
from gateway.tenants.limits_table import WAYS, LimitsTable


@pytest.fixture
def made():
    table = LimitsTable.create(3)
    yield table
    table.close()


@pytest.fixture
def join(made):
    joined = []

    def join(number: int) -> LimitsTable:
        joined.append(LimitsTable.join(made.fd, number))
        return joined[-1]

    yield join
    for table in joined:
        table.close()


def never(row: int) -> bool:
    return False


def test_all_find_the_same_row_by_its_name(join):
    one, other = join(0), join(1)
    row = one.take(ACCOUNTS, "tenant:röd", never)
    assert other.find(ACCOUNTS, "tenant:röd") == row
    assert other.take(ACCOUNTS, "tenant:röd", never) == row
    assert other.name(ACCOUNTS, row) == "tenant:röd"
    assert other.find(METERS, "tenant:röd") == -1
    assert list(other.rows(ACCOUNTS)) == [row]


def test_the_longest_name_that_an_account_may_have_is_kept_whole(join):
    name = "header:" + "\U0001f40d" * 64
    table = join(0)
    row = table.take(ACCOUNTS, name, never)
    assert table.name(ACCOUNTS, row) == name
    assert table.take(ACCOUNTS, name + "x" * 8, never) == -1


def test_eight_tenths_of_it_fill_before_a_name_has_no_row(join):
    table = join(0)
    for number in range(METERS.rows * 8 // 10):
        assert table.take(METERS, f"tenant:{number}", never) >= 0


def test_a_full_set_gives_the_row_that_rests_longest_and_nothing_is_left_in_it(join, monkeypatch):
    monkeypatch.setattr(METERS, "rows", WAYS)
    table = join(0)
    rows = {}
    for number in range(WAYS):
        rows[table.take(METERS, f"tenant:{number}", never)] = number
    for row, number in rows.items():
        table.used(METERS, row, float(number))
        table.floats[table.cells(METERS, row)] = 7.0
        table.ints[table.counters(METERS, row)] = 7
    assert sorted(rows) == list(range(WAYS))
    assert table.take(METERS, "one more", never) == -1
    new = table.take(METERS, "one more", lambda row: rows[row] in (5, 3, 9))
    assert rows[new] == 3
    assert table.find(METERS, "tenant:3") == -1
    assert table.find(METERS, "one more") == new
    assert table.floats[table.cells(METERS, new)] == table.ints[table.counters(METERS, new)] == 0


def test_what_has_changed_since(join):
    one, other = join(0), join(1)
    rows = [one.take(ACCOUNTS, f"key:{number}", never) for number in range(3)]
    one.changed(ACCOUNTS, rows[2])
    other.changed(ACCOUNTS, rows[0])
    seen, found = one.changes(ACCOUNTS, 0)
    assert sorted(found) == sorted([rows[2], rows[0]])
    assert one.changes(ACCOUNTS, seen) == (seen, [])
    one.changed(ACCOUNTS, rows[2])
    assert one.changes(ACCOUNTS, seen)[1] == [rows[2]]
    row = one.take(METERS, "m", never)
    assert one.changes(METERS, 0) == (0, [])  # else each charge would have all meters gone through, under the lock
    one.changed(METERS, row)
    assert other.changes(METERS, 0) == (1, [row])


def test_what_a_worker_has_under_way_is_given_back_when_it_lives_no_more(join):
    one, other, third = join(0), join(1), join(2)
    row = one.take(METERS, "m", never)
    at = one.counters(METERS, row)
    for number, table in enumerate((one, other, third)):
        table.ints[at + number] = 5
    assert one.bury() == []
    other.close()
    third.close()
    assert one.bury() == [1, 2]
    assert one.ints[at : at + 3].tolist() == [5, 0, 0]
    assert one.bury() == []


def test_who_follows_a_dead_worker_begins_at_zero(join):
    one, other = join(0), join(1)
    row = one.take(METERS, "m", never)
    at = one.counters(METERS, row)
    other.ints[at + 1] = 5
    with pytest.raises(RuntimeError, match="lives already"):
        join(1)
    other.close()
    join(1)
    assert one.ints[at + 1] == 0
    assert one.bury() == []


def test_one_leads_and_its_successor_is_whoever_asks_first(join):
    one, other = join(0), join(1)
    assert one.lead()
    assert one.lead()
    assert not other.lead()
    one.close()
    assert other.lead()


def test_memory_of_another_version_or_without_such_a_worker_is_refused(made, join):
    with pytest.raises(RuntimeError, match="not for worker 3"):
        join(3)
    made.ints[0] += 1
    with pytest.raises(RuntimeError, match="this version"):
        join(0)
    with pytest.raises(ValueError, match="workers must be"):
        LimitsTable.create(0)


def test_it_leaves_no_descriptor_open(made, join):
    before = len(os.listdir("/proc/self/fd"))
    table = join(0)
    assert len(os.listdir("/proc/self/fd")) > before
    table.close()
    table.close()
    assert len(os.listdir("/proc/self/fd")) == before
