from __future__ import annotations

from gateway.kvcache.index.columns import Columns
from gateway.kvcache.index.layers import LAYERS


def test_a_place_is_free_when_it_is_cleared():
    columns = Columns()
    assert [columns.allocate(), columns.allocate()] == [0, LAYERS]
    columns.release(0, iter([None] * 5))
    assert columns.sweeps
    assert not columns.sweep(5)
    assert columns.allocate() == 2 * LAYERS
    assert columns.sweep(1)
    assert columns.allocate() == 0
    assert not columns.sweeps


def test_one_is_cleared_after_the_other():
    columns = Columns()
    for _ in range(3):
        columns.allocate()
    for column in (2 * LAYERS, 0):
        columns.release(column, iter([None] * 4))
    assert not columns.sweep(5)
    assert columns.allocate() == 2 * LAYERS
    assert columns.sweep(10)
    assert columns.allocate() == 0


def test_clearing_ends_where_the_budget_does():
    columns = Columns()
    work = iter([None] * 10)
    columns.release(columns.allocate(), work)
    assert not columns.sweep(3)
    assert len(list(work)) == 7
