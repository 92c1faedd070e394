"""Workers' metrics as one text: what each of them counts is added up, and never goes back when one of them dies.

The texts are Prometheus' text format as our own instruments and the client library write it. All processes write a
series' name and labels alike, so these are compared as text and no label is parsed.

Rules: of a counter or histogram only what has grown since the last look is added to the total. So a worker that has
died leaves what it had counted until then, and its successor begins at 0. What all of them count is what the one that
is ahead has counted. A gauge is of the workers that live, by the rule of its family (``Family.over``). A series that no
worker has any more stays in the total as long as there is its endpoint or engine, as with one process.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from prometheus_client.utils import floatToGoString

from gateway.observability.instruments import Over

Series: TypeAlias = dict[str, float]
"""By name and labels, as they are written."""

OF_THE_LIBRARY: Mapping[str, Over] = {
    "process_start_time_seconds": "min",
    "process_max_fds": "min",
    "process_virtual_memory_bytes": "sum",
    "process_resident_memory_bytes": "sum",
    "process_open_fds": "sum",
}
"""What the client library's own gauges are of all processes of a service; python_info is the same in all."""

ENDPOINTS, ENGINES = "kvgate_endpoint_draining", "kvgate_engine_up"
"""Families with a series for each endpoint and each engine that there is."""

_OWNER = re.compile(r'(?:^|[{,])(endpoint|engine)="((?:[^"\\]|\\.)*)"')


@dataclass(slots=True)
class Family:
    """``head``: its HELP and TYPE lines. ``kind``: counter, gauge or histogram."""

    head: str
    kind: str
    series: Series = field(default_factory=dict)

    @property
    def grows(self) -> bool:
        return self.kind in ("counter", "histogram")


def parse(text: str) -> dict[str, Family]:
    """Families by name, in their order."""
    families: dict[str, Family] = {}
    head, family = "", Family("", "")
    for line in text.split("\n"):  # a label may have any other line break in it
        if line.startswith("# HELP "):
            head = line + "\n"
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            family = families[name] = Family(f"{head}{line}\n", kind)
        elif line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            family.series[name] = float(value)
    return families


class Totals:
    """``rules``: of families whose rule is none of the library's. A family without a rule: counters and histograms are
    added up, of gauges the largest is shown."""

    def __init__(self, rules: Mapping[str, Over]) -> None:
        self._rules = {**OF_THE_LIBRARY, **rules}
        self._grown: dict[str, Series] = {}
        self._latest: dict[Hashable, dict[str, Family]] = {}
        self._counts: dict[Hashable, dict[str, dict[str, tuple[float, float]]]] = {}
        """Of families that all count, by process: how far its own count began below the total, and that count."""
        self._heads: dict[str, Family] = {}

    def look(self, texts: Mapping[Hashable, str]) -> None:
        """``texts``: of processes, each by what it is known by, which no successor has."""
        growth: dict[str, dict[str, list[float]]] = {}
        before_all = {name: dict(self._grown.get(name, {})) for name, rule in self._rules.items() if rule == "once"}
        for process, text in texts.items():
            families, before = parse(text), self._latest.get(process)
            for name, family in families.items():
                self._heads.setdefault(name, Family(family.head, family.kind))
                if family.grows:
                    if name in before_all:
                        self._look_once(process, name, family.series, before_all[name])
                        continue
                    known = before[name].series if before is not None and name in before else {}
                    seen = growth.setdefault(name, {})
                    for series, value in family.series.items():
                        last = known.get(series, 0.0)
                        # Less than before: the series was removed, and is there again.
                        seen.setdefault(series, []).append(value - last if value >= last else value)
            self._latest[process] = families
        for name, of_family in growth.items():
            total = self._grown.setdefault(name, {})
            for series, grown in of_family.items():
                total[series] = total.get(series, 0.0) + sum(grown)
        self._forget()

    def _look_once(self, process: Hashable, name: str, series: Series, before: Series) -> None:
        """What all count: the total is what the one that is ahead has counted. No growth is added up, for they are
        ahead by turns, and each turn would count again what one was behind. ``before``: the total at the last look."""
        counts = self._counts.setdefault(process, {}).get(name)
        if counts is None:  # what is counted already a newcomer has counted for itself, or not at all
            counts = {key: (value - series.get(key, 0.0), series.get(key, 0.0)) for key, value in before.items()}
            self._counts[process][name] = counts
        total = self._grown.setdefault(name, {})
        for key, value in series.items():
            behind, last = counts.get(key, (0.0, 0.0))
            if value < last:  # the series was removed, and is there again
                behind += last
            counts[key] = behind, value
            total[key] = max(total.get(key, 0.0), value + behind)

    def gone(self, process: Hashable) -> None:
        """This process has ended: its gauges go, and what it has counted stays."""
        self._latest.pop(process, None)
        self._counts.pop(process, None)

    def text(self, lead: Hashable) -> Iterator[str]:
        """All families, each whole. ``lead``: the process whose gauges are shown where the rule is ``lead``."""
        for name, head in self._heads.items():
            series = self._grown.get(name, {}) if head.grows else self._gauge(name, lead)
            yield head.head + "".join(f"{key} {_number(value)}\n" for key, value in series.items())

    def _gauge(self, name: str, lead: Hashable) -> Series:
        rule = self._rules.get(name, "max")
        if rule == "lead":
            first = self._latest.get(lead)
            return first[name].series if first is not None and name in first else {}
        values: dict[str, list[float]] = {}
        for families in self._latest.values():
            if name in families:
                for series, value in families[name].series.items():
                    values.setdefault(series, []).append(value)
        return {series: _together(rule, each) for series, each in values.items()}

    def _forget(self) -> None:
        """Drop the totals of endpoints and engines that no process knows any more. While none knows any, because all
        workers have died, they stay: the successors go on with them."""
        known = {
            label: set(_owners(label, (f.series for fs in self._latest.values() if (f := fs.get(name)) is not None)))
            for label, name in (("endpoint", ENDPOINTS), ("engine", ENGINES))
        }
        for name, total in self._grown.items():
            live = [families[name].series for families in self._latest.values() if name in families]
            lost = total.keys() - set().union(*live)
            for series in lost:
                if any(known[label] and value not in known[label] for label, value in _OWNER.findall(series)):
                    del total[series]
                    for counts in self._counts.values():
                        counts.get(name, {}).pop(series, None)


def _together(rule: Over, values: list[float]) -> float:
    if rule == "sum":
        return sum(values)
    return min(values) if rule == "min" else max(values)


def _owners(label: str, found: Iterable[Series]) -> Iterator[str]:
    for series in found:
        for name in series:
            yield from (value for of, value in _OWNER.findall(name) if of == label)


def _number(value: float) -> str:
    return floatToGoString(value)  # type: ignore[no-untyped-call, no-any-return]  # the library's own notation
