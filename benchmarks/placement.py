"""The default placement against the others' policies, over a grid of loads: what docs/benchmarks.md holds.

``python -m benchmarks.placement conversation_trace.jsonl`` runs all of it (some hours on two cores; ``--first 3000``:
one), writes every figure to JSON files, and the tables and charts of the page from those. ``--draw`` only does the
latter, and needs no trace. ``--resume`` keeps the cells that the JSON files have already.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console

from benchmarks.placement_grid import Traces, grid, title
from benchmarks.placement_page import charts, write
from gateway.commands.replay.command import settings
from gateway.commands.replay.compare import Job, Ticker, run
from gateway.commands.replay.policies import DEFAULT, Policy, load_policies, load_policy
from gateway.commands.replay.report import FORMAT, Comparison, check_writable, gather, save
from gateway.commands.replay.scene import Cell
from gateway.commands.replay.statistics import Summary
from gateway.errors import ConfigError
from simulator.virtual.noise import Noise

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
NUMBERS = PAGE.with_name("benchmarks") / "placement.json"

POLICIES = (
    "default,llm-d,llm-d-sticky,lmetric,dynamo-cost-6,aibrix,sglang-8,bounded-hash,session-affinity,least-requests,"
    "round-robin"
)
"""One of each kind: those of all that have names, and of a peer with several the one that did best here."""

ORIGIN = "https://github.com/kvcache-ai/Mooncake/blob/main/FAST25-release/traces/conversation_trace.jsonl"

VARIED = ("conversation, 0.45", "groups, 2.00")
"""Of the published cells, those on which the default is told wrongly: of the middle loads."""

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

FITTED, UNFITTED = "fitted", "not fitted"
NOISE = Noise(step=0.3, prefill=0.3, stalls=0.01)
"""What steps of engines on a shared machine differ by; one in a hundred takes ten times as long."""


def load(path: Path) -> list[Comparison]:
    """Read what ``save`` wrote. Raises ConfigError."""
    try:
        value = json.loads(path.read_text())
        if value["format"] != FORMAT:
            raise ConfigError(f"{path}: format {value['format']!r}: this version reads {FORMAT}")
        return [
            Comparison(
                cell["name"],
                cell["settings"],
                {policy: [Summary(**summary) for summary in found] for policy, found in cell["summaries"].items()},
            )
            for cell in value["cells"]
        ]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: not what a replay wrote: {type(error).__name__}: {error}") from None


def jobs_of(cell: Cell, names: str, seeds: range) -> list[Job]:
    return [Job(cell, policy, seed) for policy in load_policies(names) for seed in seeds]


def fits_of(cell: Cell, seeds: range) -> list[Job]:
    """The default with costs that are fitted and that are not, on engines whose times have real noise."""
    default = load_policy(DEFAULT).config
    return [
        Job(replace(cell, noise=NOISE, fitted=fitted), Policy(name, default), seed)
        for name, fitted in ((FITTED, True), (UNFITTED, False))
        for seed in seeds
    ]


def variants_of(cell: Cell, names: str, seeds: range) -> list[Job]:
    """The default under each of ``VARIANTS``, as if they were policies; as it is, too, unless it is among ``names``."""
    jobs: list[Job] = []
    if not cell.name.startswith(VARIED):
        return jobs
    named = any(policy.name == DEFAULT for policy in load_policies(names))
    for name, changes in (VARIANTS if named else {AS_IT_IS: {}, **VARIANTS}).items():
        policy = Policy(name, load_policy(DEFAULT).config)
        jobs += [Job(replace(cell, **changes), policy, seed) for seed in seeds]
    return jobs


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one cell: the policies, the default told wrongly (on some cells), and with its costs fitted and not."""

    compared: Comparison
    varied: Comparison
    fitted: Comparison


def measure(cell: Cell, names: str, seeds: range, processes: int, console: Console) -> Measured:
    name = title(cell)
    compared, varied, fits = jobs_of(cell, names, seeds), variants_of(cell, names, seeds), fits_of(cell, seeds)
    jobs = compared + varied + fits
    found = run(jobs, Ticker(console, name, len(jobs)), processes=processes)
    wrong, noisy = found[len(compared) : -len(fits)], found[-len(fits) :]
    found = found[: len(compared)]
    as_it_is = [replace(one, policy=AS_IT_IS) for one in found if one.policy == DEFAULT]
    told = settings(cell)
    return Measured(gather(name, told, found), gather(name, told, as_it_is + wrong), gather(name, told, noisy))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "trace",
        type=Path,
        nargs="?",
        help="conversation_trace.jsonl of kvcache-ai/Mooncake, FAST25-release/traces; not needed to --draw",
    )
    parser.add_argument("--synthetic", type=Path, metavar="FILE", help="Mooncake's synthetic_trace.jsonl")
    parser.add_argument("--azure", type=Path, metavar="FILE", help="AzureLLMInferenceTrace_conv.csv, or as JSON lines")
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
    began = perf_counter()
    files = [options.json, *(options.json.with_stem(f"{options.json.stem}_{part}") for part in ("variants", "fit"))]

    def kept(path: Path) -> list[Comparison]:  # the first run may be told to resume, too
        return load(path) if options.draw or (options.resume and path.exists()) else []

    try:
        if not (options.draw or (options.trace is not None and options.trace.exists())):
            raise ConfigError(f"there is no {options.trace or 'trace given'}: it is {ORIGIN}")
        cells, varied, fits = map(kept, files)
        for path in () if options.draw else files:
            check_writable(path)
        done = {comparison.name for comparison in cells}
        traces = None if options.draw else Traces(options.trace, options.synthetic, options.azure, options.first)
        for cell in () if traces is None else grid(traces):
            if title(cell) in done:
                continue
            found = measure(cell, options.policies, range(1, options.seeds + 1), options.jobs, console)
            cells.append(found.compared)
            fits.append(found.fitted)
            if len(found.varied.summaries) > 1:
                varied.append(found.varied)
            for comparisons, path in zip((cells, varied, fits), files, strict=True):
                save(comparisons, path)
            console.print(f"{found.compared.name}: after {(perf_counter() - began) / 60:.1f} minutes", highlight=False)
        write(options.page, cells, varied, fits)
        charts(options.page, cells)
    except ConfigError as error:
        print(f"benchmarks.placement: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
