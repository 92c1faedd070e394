"""Which workloads, loads and machines the placement is measured on: the cells of docs/benchmarks.md.

Two parts. The published cells are those of version 0.1, on which its defaults were chosen. The held-out ones, which it
had not seen, are of other traces, of other machines, of fleets of two kinds and of generated agents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.commands.replay.agents import AgentShape
from gateway.commands.replay.fleet import Kinds, kinds
from gateway.commands.replay.groups import Shape
from gateway.commands.replay.scene import Cell
from gateway.commands.replay.sources import GeneratedSource, Source, TraceSource
from simulator.virtual.machine import MACHINES

HALF = 6_000
"""Requests of the conversation trace that are its first half; the rest is held out."""

HBM, HOST = kinds("8 x 70b-tp4"), kinds("8 x 70b-tp4+host")
MIXED = kinds("4 x 70b-tp4 + 4 x 8b-h100")
"""Two kinds of engines, one two and a half times as fast as the other."""

GROUP_SPEEDS = (1.4, 2.0, 2.6)
AGENTS = AgentShape(block=256)
"""In blocks of 256 tokens, a tenth of what a turn adds: hit shares are within half a point of those with vLLM's 16, and
a run takes a quarter of the time."""


@dataclass(frozen=True, slots=True)
class Traces:
    """The files; None: its cells are left out. ``first``: requests of each cell; None: all."""

    conversation: Path
    synthetic: Path | None = None
    azure: Path | None = None
    first: int | None = None


def published(traces: Traces) -> Iterator[Cell]:
    conversation = TraceSource(traces.conversation, _least(HALF, traces.first), title="conversation")
    yield from _over(conversation, (HBM, HOST), (0.30, 0.45, 0.60))
    for output in (250, 1000):
        # With 1,000 at these loads the machines are saturated by decoding alone, whatever the policy.
        yield from _over(_groups(output, traces.first), (HBM,), GROUP_SPEEDS if output == 250 else GROUP_SPEEDS[1:])


def held_out(traces: Traces) -> Iterator[Cell]:
    later = TraceSource(traces.conversation, traces.first, skip=HALF, title="conversation, second half")
    yield from _over(later, (HBM, HOST), (0.30, 0.45, 0.60))
    # Where one kind is told for both, the gateway has to find by itself that they differ.
    told = MACHINES["70b-tp4"]
    if traces.synthetic is not None:
        synthetic = TraceSource(traces.synthetic, traces.first, title="synthetic")
        yield from _over(synthetic, (HBM, HOST), (0.25, 0.45, 0.65))
        yield Cell(synthetic, fleet=MIXED, speed=0.65)
        yield Cell(synthetic, fleet=MIXED, speed=0.65, believed=told)
    if traces.azure is not None:
        azure = TraceSource(traces.azure, traces.first, title="Azure 2023")
        yield from _over(azure, (HBM,), (2.5, 3.5, 5.0))  # nothing is shared: a host tier has nothing to hold
        yield Cell(azure, fleet=MIXED, speed=5.0)
        yield Cell(azure, fleet=MIXED, speed=5.0, believed=told)
    agents = GeneratedSource(AGENTS)
    # All sessions fit into the GPUs' memory at the lowest load, and into the hosts' at the two lower ones.
    yield from _over(agents, (HBM,), (0.20, 0.40, 0.60))
    yield from _over(agents, (HOST,), (0.40, 0.60, 0.90))


def grid(traces: Traces) -> list[Cell]:
    return [*published(traces), *held_out(traces)]


def title(cell: Cell) -> str:
    shape = cell.source.shape if isinstance(cell.source, GeneratedSource) else None
    outputs = f", {shape.output:,} tokens out" if isinstance(shape, Shape) else ""
    told = ", told as one kind" if cell.believed is not None else ""
    return f"{cell.name}{outputs}{told}"


def _over(source: Source, fleets: Sequence[Kinds], speeds: Sequence[float]) -> Iterator[Cell]:
    """``speeds``: requests/s/endpoint."""
    for fleet in fleets:
        for speed in speeds:
            yield Cell(source, fleet=fleet, speed=speed)


def _groups(output: int, first: int | None) -> GeneratedSource:
    rounds = 6 if first is None else max(1, first // 750)
    return GeneratedSource(Shape(output=output, rounds=rounds))


def _least(one: int, other: int | None) -> int:
    return one if other is None else min(one, other)
