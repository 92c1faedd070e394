"""What the KV benchmarks share in measuring and printing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time

PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Figure:
    """One line. ``target``: None where there is none; ``most``: the target is the largest allowed, else the least."""

    name: str
    value: float
    unit: str
    target: float | None = None
    most: bool = True

    @property
    def met(self) -> str:
        if self.target is None:
            return ""
        good = self.value <= self.target if self.most else self.value >= self.target
        return "met" if good else "NOT MET"


def show(title: str, figures: Sequence[Figure]) -> None:
    """Print a table; ``load`` is the machine's at its end, processes that ran or waited within the last minute."""
    width = max((len(figure.name) for figure in figures), default=0)
    print(f"\n{title}  (load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, Python {sys.version.split()[0]})")
    for figure in figures:
        bound = "" if figure.target is None else f"{'<=' if figure.most else '>='} {figure.target:,g}"
        print(f"  {figure.name:<{width}}  {_number(figure.value):>12} {figure.unit:<10} {bound:<14} {figure.met}")
    sys.stdout.flush()


def cpu(run: Callable[[], object]) -> float:
    """Seconds of this process's CPU that ``run`` takes."""
    began = process_time()
    run()
    return process_time() - began


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"
