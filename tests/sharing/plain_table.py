"""A table of loads in plain dictionaries."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.fleet.load.others import NOTHING, Row


class PlainTable:
    """``names``: that are known; None: all. ``own``: this host's rows; ``change`` changes them. ``rows``: of others."""

    def __init__(self, names: set[str] | None = None) -> None:
        self.names = names
        self.own: dict[str, Row] = {}
        self.rows: dict[int, dict[str, Row]] = {}
        self.written = 0
        self._changes: list[str] = []

    def change(self, name: str, row: Row) -> None:
        self.own[name] = row
        self._changes.append(name)

    def write(self, writer: int, name: str, row: Row) -> bool:
        if self.names is not None and name not in self.names:
            return False
        self.written += 1
        self.rows.setdefault(writer, {})[name] = row
        return True

    def clear(self, writer: int) -> None:
        self.rows.pop(writer, None)

    def changed(self, cursor: Sequence[int] | None) -> tuple[Sequence[int] | None, dict[str, Row]]:
        after = (len(self._changes),)
        if cursor is None:
            return after, {name: row for name, row in self.own.items() if row != NOTHING}
        return after, {name: self.own[name] for name in self._changes[cursor[0] :]}

    def requests(self, name: str) -> int:
        """Of all others together."""
        return sum(rows[name].requests for rows in self.rows.values() if name in rows)
