"""What approximations of endpoints without events outlive a process, as plain values that a file can hold."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isfinite

from gateway.kvcache.index.block_table import CHUNK_SIZE

KEY_BYTES = 8


@dataclass(frozen=True, slots=True)
class KeptEstimate:
    """Of one endpoint. ``started``: of its engine's process, as that reports it. ``believed``: as in
    ``ApproximateCache``. ``runs``: see ``packed``."""

    name: str
    started: float | None
    believed: float
    runs: bytes

    def __post_init__(self) -> None:
        if not 0.0 < self.believed <= 1.0 or not (self.started is None or isfinite(self.started)):
            raise ValueError("an estimate's figures")


@dataclass(frozen=True, slots=True)
class KeptEstimates:
    """Of one model. ``unit``: tokens of a block key."""

    unit: int
    endpoints: tuple[KeptEstimate, ...]


def packed(runs: Iterable[array[int]]) -> bytes:
    """Runs of at most ``CHUNK_SIZE`` keys each, the least recently used first: each its length, and its keys."""
    return b"".join(part for run in runs for part in (bytes((len(run),)), run.tobytes()))


def unpacked(data: bytes) -> Iterator[array[int]]:
    """The runs of ``packed``. Ends where ``data`` is none."""
    at = 0
    while at < len(data):
        end = at + 1 + data[at] * KEY_BYTES
        if not 0 < data[at] <= CHUNK_SIZE or end > len(data):
            return
        run = array("Q")
        run.frombytes(data[at + 1 : end])
        yield run
        at = end
