"""The default placement against the others' policies, over a grid of loads: what docs/benchmarks.md holds.

``python -m benchmarks.placement conversation_trace.jsonl`` runs all of it (about 45 minutes on two cores), writes every
figure to a JSON file, and the tables and charts of the page from that. ``--draw`` only does the latter, and needs no
trace. ``--resume`` keeps the cells that the JSON file has already.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console

from benchmarks.placement_page import charts, write
from gateway.errors import ConfigError
from gateway.replay.cell import Cell
from gateway.replay.command import settings
from gateway.replay.compare import Job, run
from gateway.replay.groups import Shape
from gateway.replay.kinds import kinds
from gateway.replay.policies import DEFAULT, Wiring, policies, policy
from gateway.replay.report import Comparison, check_writable, gather, load, save
from gateway.replay.show import Ticker
from gateway.replay.sources import GroupsSource, TraceSource

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
NUMBERS = PAGE.with_name("benchmarks") / "placement.json"

POLICIES = (
    "default,llm-d,llm-d-sticky,lmetric,dynamo-cost-6,aibrix,sglang-8,bounded-hash,session-affinity,least-requests,"
    "round-robin"
)
"""One of each kind: those of all that have names, and of a peer with several the one that did best here."""

CONVERSATION_SPEEDS = (0.30, 0.45, 0.60)
GROUP_SPEEDS = (2.0, 2.6)
GROUP_OUTPUTS = (1000, 250)
"""Tokens. With 1,000 at these loads the machines are saturated by decoding alone (a step takes 70 ms), whatever the
policy; with 250 they are loaded and not overloaded."""

ORIGIN = "https://github.com/kvcache-ai/Mooncake/blob/main/FAST25-release/traces/conversation_trace.jsonl"

VARIED_SPEEDS = (0.45, 2.0)
"""Loads under which the default is told wrongly: the middle ones."""

AS_IT_IS = "as it is"
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "prefill / 2, not fitted": {"cost_scale": 0.5, "step_scale": 1.0},
    "prefill x 2, not fitted": {"cost_scale": 2.0, "step_scale": 1.0},
    "all x 2, not fitted": {"cost_scale": 2.0},
    "scrapes 5 s old": {"scrape": 5.0},
    "no scrapes": {"scrape": None},
}
"""What the default is told wrongly, or not at all. Where it is a cost alone that decides, a factor on all of it changes
nothing, so that half and double of prefill against decode are all there is, and the last is what fitting is worth."""


def grid(trace: Path, first: int | None) -> Iterator[Cell]:
    source = TraceSource(trace, first, title="Mooncake conversation")
    for machine in ("70b-tp4", "70b-tp4+host"):
        for speed in CONVERSATION_SPEEDS:
            yield Cell(source, fleet=kinds(f"8 x {machine}"), speed=speed)
    for output in GROUP_OUTPUTS:
        rounds = 6 if first is None else max(1, first // 750)
        for speed in GROUP_SPEEDS:
            yield Cell(GroupsSource(Shape(output=output, rounds=rounds)), speed=speed)


def title(cell: Cell) -> str:
    if isinstance(cell.source, GroupsSource):
        return f"{cell.name}, {cell.source.shape.output:,} tokens out"
    return cell.name


def jobs_of(cell: Cell, names: str, seeds: range) -> list[Job]:
    return [Job(cell, wiring, seed) for wiring in policies(names) for seed in seeds]


def variants_of(cell: Cell, names: str, seeds: range) -> list[Job]:
    """The default under each of ``VARIANTS``, as if they were policies; as it is, too, unless it is among ``names``."""
    jobs: list[Job] = []
    if cell.speed not in VARIED_SPEEDS:
        return jobs
    named = any(wiring.name == DEFAULT for wiring in policies(names))
    for name, changes in (VARIANTS if named else {AS_IT_IS: {}, **VARIANTS}).items():
        wiring = Wiring(name, policy(DEFAULT).config)
        jobs += [Job(replace(cell, **changes), wiring, seed) for seed in seeds]
    return jobs


def measure(cell: Cell, names: str, seeds: range, processes: int, console: Console) -> tuple[Comparison, Comparison]:
    """The cell's comparison, and what the variants of the default make of it."""
    name = title(cell)
    jobs = jobs_of(cell, names, seeds) + variants_of(cell, names, seeds)
    with Ticker(console, name, jobs) as ticker:
        summaries = run(jobs, processes=processes, watcher=ticker)
    compared = [one for one in summaries if one.policy not in (AS_IT_IS, *VARIANTS)]
    varied = [one for one in summaries if one.policy in (AS_IT_IS, *VARIANTS)]
    as_it_is = [replace(one, policy=AS_IT_IS) for one in compared if one.policy == DEFAULT]
    return gather(name, settings(cell), compared), gather(name, settings(cell), as_it_is + varied)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "trace",
        type=Path,
        nargs="?",
        help="conversation_trace.jsonl of kvcache-ai/Mooncake, FAST25-release/traces; not needed to --draw",
    )
    parser.add_argument("--policies", default=POLICIES, metavar="NAME,...", help=f"the first is judged ({POLICIES})")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each policy in each cell (3)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time (as many as cores)")
    parser.add_argument("--first", type=int, help="requests of each cell: for a quick look (all)")
    parser.add_argument("--json", type=Path, default=NUMBERS, help="where the figures go")
    parser.add_argument("--page", type=Path, default=PAGE, help="whose tables are written")
    parser.add_argument("--draw", action="store_true", help="run nothing: write the page from the JSON")
    parser.add_argument("--resume", action="store_true", help="keep the cells that the JSON has")
    options = parser.parse_args()
    console = Console(stderr=True)
    variants = options.json.with_stem(f"{options.json.stem}_variants")
    began = perf_counter()

    def kept(path: Path) -> bool:  # the first run may be told to resume, too
        return options.draw or (options.resume and path.exists())

    try:
        if not (options.draw or (options.trace is not None and options.trace.exists())):
            raise ConfigError(f"there is no {options.trace or 'trace given'}: it is {ORIGIN}")
        cells: list[Comparison] = load(options.json) if kept(options.json) else []
        varied: list[Comparison] = load(variants) if kept(variants) else []
        for path in () if options.draw else (options.json, variants):
            check_writable(path)
        done = {comparison.name for comparison in cells}
        for cell in () if options.draw else grid(options.trace, options.first):
            if title(cell) in done:
                continue
            compared, wrong = measure(cell, options.policies, range(1, options.seeds + 1), options.jobs, console)
            cells.append(compared)
            if len(wrong.summaries) > 1:
                varied.append(wrong)
            save(cells, options.json)
            save(varied, variants)
            console.print(f"{compared.name}: after {(perf_counter() - began) / 60:.1f} minutes", highlight=False)
        write(options.page, cells, varied)
        charts(options.page, cells)
    except ConfigError as error:
        print(f"benchmarks.placement: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
