"""Tables on a terminal that is too narrow for a row for each endpoint: then an endpoint has a column."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

UNLIMITED = 1_000_000
"""Columns of a terminal that is wider than any table, to measure a table's own width."""


def _fits(table: Table, console: Console) -> bool:
    unlimited = console.options.update(max_width=UNLIMITED)
    return Measurement.get(console, unlimited, table).maximum <= console.width


def as_many_as_fit(
    console: Console, wide: Table, make: Callable[[Sequence[Sequence[str]]], Table], columns: Sequence[Sequence[str]]
) -> list[Table]:
    """``wide``, which has a row for each endpoint, if it fits; else tables that ``make`` makes of some of the
    ``columns`` each, at least one."""
    if _fits(wide, console):
        return [wide]
    tables: list[Table] = []
    left = list(columns)
    while left:
        count = len(left)
        while count > 1 and not _fits(make(left[:count]), console):
            count -= 1
        tables.append(make(left[:count]))
        del left[:count]
    return tables
