"""What a host may spend of a budget, by what the store has said of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.core.clock import ManualClock
from gateway.tenants.division import LEASE as LIVES
from gateway.tenants.limit_settings import BudgetSettings
from gateway.tenants.limits_layout import ACCOUNTS, BUDGET, LEASE, OTHERS, PERIOD, SAID, SYNCED
from gateway.tenants.limits_table import LimitsTable
from gateway.tenants.shared_rows import Mode, Rows

OF_ALL = BudgetSettings(1000.0, "tokens", "total")


@pytest.fixture
def rows(clock) -> Iterator[Rows]:
    made = LimitsTable.create(1)
    table = LimitsTable.join(made.fd, 0)
    try:
        with table:
            table.divide(Mode.DIVIDED, 2)
            yield Rows(table, clock, divided=True)
    finally:
        table.close()
        made.close()


def told(rows: Rows, *, others: float, lease: float, synced: float = 100.0, said: float | None = None) -> int:
    """A row of which the store has said this just now."""
    row = rows.table.take(ACCOUNTS, "tenant:red", rows.is_idle_of_header)
    cells, at = rows.table.floats, rows.table.cells(ACCOUNTS, row) + BUDGET
    cells[at + PERIOD], cells[at + OTHERS] = rows.period("total"), others
    cells[at + SYNCED], cells[at + LEASE] = synced, lease
    cells[at + SAID] = rows.clock.monotonic() if said is None else said
    return row


def test_while_its_part_is_its_own_a_host_may_spend_it(rows, clock):
    row = told(rows, others=300.0, lease=200.0)
    clock.now += LIVES - 0.01
    assert rows.beyond(row, OF_ALL, 100.0) == 700.0
    assert not rows.lacks(row, OF_ALL, 100.0, 0.0)


@pytest.mark.parametrize(("others", "beyond"), [(300.0, 500.0), (800.0, 800.0)])
def test_a_part_that_the_store_may_have_given_away_counts_no_more(rows, clock: ManualClock, others, beyond):
    """The worker that leads may have stood still; what others had spent before is not forgotten."""
    row = told(rows, others=others, lease=690.0)
    clock.now += LIVES
    assert rows.beyond(row, OF_ALL, 100.0) == beyond
    assert rows.lacks(row, OF_ALL, 100.0, 0.0), "it is asked for anew"


@pytest.mark.parametrize(("others", "beyond"), [(300.0, 350.0), (1001.0, 1051.0)])
def test_while_the_store_is_away_a_host_that_was_idle_knows_what_others_have_spent(rows, others, beyond):
    row = told(rows, others=others, lease=0.0, said=0.0)
    rows.table.divide(Mode.SHARE, 2)
    assert rows.beyond(row, OF_ALL, 150.0) == beyond, "and each of them spends as much as this one since"


def test_of_a_period_of_which_the_store_has_said_nothing_a_host_may_spend_its_share(rows):
    row = told(rows, others=900.0, lease=100.0)
    by_day = BudgetSettings(1000.0, "tokens", "day")
    for mode in (Mode.UNKNOWN, Mode.DIVIDED, Mode.SHARE):
        rows.table.divide(mode, 4)
        assert rows.beyond(row, by_day, 0.0) == 750.0
