"""``kvgate plan``: finds how many engines a workload needs to be answered within its objectives.

First it reports what no size can reach, and why, before anything is replayed. Then it replays sizes with the gateway's
own placement, by doubling and bisection. Each size runs with several seeds, and with more if these do not decide.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from gateway.commands.replay.command import print_notes
from gateway.commands.replay.compare import Job, Ticker, run
from gateway.commands.replay.fleet import MOST, Kind, Kinds, named
from gateway.commands.replay.floor import Demand, Floor, demand, floors
from gateway.commands.replay.plan_report import answer, draw, fault, table
from gateway.commands.replay.policies import Policy
from gateway.commands.replay.report import check_writable
from gateway.commands.replay.scene import Cell
from gateway.commands.replay.sizes import Sized, Trial, best_of, judge, smallest
from gateway.commands.replay.statistics import Summary
from gateway.errors import ConfigError
from gateway.framework import Role
from simulator.virtual.machine import Machine

TWO_LEGS = "prefill-decode"
"""The type of the handler that places prefill and decode separately."""

TOGETHER, APART = "prompts and answers together", "prompts computed apart"

WIDTH = 80
"""Width of the table in characters, on any terminal."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The question to answer. ``cell``: everything but the fleet and the load. ``rate``: requests a second in all;
    None: the trace's own rate, or a closed loop. ``share``: of the requests, and of those of each class with
    objectives, that must meet their objectives. ``roles``: also search for fleets that compute prompts apart."""

    cell: Cell
    machine: Machine
    policy: Policy
    rate: float | None = None
    share: float = 0.99
    seeds: int = 3
    most: int = 256
    processes: int = 1
    roles: bool = False

    def __post_init__(self) -> None:
        if not str(self.cell.objectives):
            raise ConfigError("give the objectives: --slo ttft=2s,tpot=50ms")
        if self.rate is not None and not self.rate > 0:
            raise ConfigError("--rate must be above 0 requests/s")
        if not 0 < self.share < 1:
            raise ConfigError("--share must be above 0 and below 100 %: nobody can promise all")
        if self.seeds < 2:
            raise ConfigError("seeds must be at least 2: one says nothing of the noise")
        if not 1 <= self.most <= MOST:
            raise ConfigError(f"--most must be in 1..{MOST} engines")
        if self.roles:
            if self.most < 2:
                raise ConfigError("--most must be at least 2 engines with --roles: one prefills, one answers")
            split(self.policy)

    @property
    def name(self) -> str:
        """The name of the workload, such as ``trace, 20 requests/s, placed by default``."""
        load = "" if self.rate is None else f", {self.rate:g} requests/s"
        return f"{self.cell.source.name}{load}, placed by {self.policy.name}"

    def sized(self, fleet: Kinds) -> Cell:
        """The cell with this number of engines."""
        cell = dataclasses.replace(self.cell, fleet=fleet)
        return cell if self.rate is None else dataclasses.replace(cell, speed=self.rate / cell.endpoints)

    def floors(self) -> list[Floor]:
        """Check the plan. Raises ConfigError if no request has objectives, or a request fits no engine."""
        cell = self.sized((Kind(self.machine),))
        found = floors(cell.workload(1), self.machine, cell.objectives)
        if not found:
            raise ConfigError(f"--slo: {cell.source.name} has no requests of {cell.objectives}")
        for one in found[0].alone:
            tokens = one.call.input_tokens + one.call.output_tokens
            if tokens > self.machine.kv_tokens:
                raise ConfigError(
                    f"a request of {tokens:,} tokens does not fit {self.machine.name}, whose KV memory has "
                    f"{self.machine.kv_tokens:,}: choose a larger machine, or cut the trace"
                )
        return found

    def replay(self, policy: Policy, fleet: Kinds, seeds: range) -> Sequence[Summary]:
        jobs = [Job(self.sized(fleet), policy, seed) for seed in seeds]
        return run(jobs, Ticker(Console(stderr=True), named(fleet), len(jobs)), processes=self.processes)

    def met(self, summary: Summary) -> float:
        """The share of requests that met their objectives; the lowest share of all classes with objectives."""
        objectives = self.cell.objectives
        found = [] if objectives.every is None else [summary.values["goodput"]]
        found += [figures["goodput"] for name, figures in summary.classes.items() if objectives.asked(name) is not None]
        return min(found)

    def together(self, work: Demand) -> Sized:
        """Search for a fleet whose engines all compute prompts and answer."""
        trial = self._judge(self.policy)

        def best(engines: int) -> Trial:
            return trial((Kind(self.machine, engines),))

        return smallest(best, first=round(work.engines), least=1, most=self.most)

    def apart(self, work: Demand) -> Sized:
        """Search for a fleet of prefill and decode engines. For each size the best split is searched, beginning with
        what the work alone would need. Raises ConfigError if the policy has no handler that plans two legs."""
        trial = self._judge(split(self.policy))

        def best(engines: int) -> Trial:
            def divided(prefill: int) -> Trial:
                decode = Kind(self.machine, engines - prefill, Role.DECODE)
                return trial((Kind(self.machine, prefill, Role.PREFILL), decode))

            return best_of(divided, first=round(engines * work.prefill_share), least=1, most=engines - 1)

        return smallest(best, first=max(2, round(work.engines)), least=2, most=self.most)

    def _judge(self, policy: Policy) -> Callable[[Kinds], Trial]:
        return judge(partial(self.replay, policy), self.met, asked=self.share, seeds=self.seeds)


def plan(wanted: Plan, *, plot: Path | None) -> int:
    """Search, and print the result. Returns the exit code: 0, or 1 if no size is enough. Raises ConfigError."""
    console = Console(width=WIDTH)
    if plot is not None:
        check_writable(plot)
    print_notes(wanted.cell.source)
    found = wanted.floors()
    faults = [line for floor in found for line in fault(floor, wanted.share, wanted.machine)]
    for line in faults:
        console.print(line, markup=False, highlight=False)
    if faults:
        return 1
    work = demand(found[0].alone, wanted.machine, wanted.cell.objectives)
    sized: dict[str, Sized] = {}
    for layout, search in ((TOGETHER, wanted.together), (APART, wanted.apart))[: 2 if wanted.roles else 1]:
        sized[layout] = search(work)
        console.print(table(sized[layout].trials.values(), found, layout))
        for line in answer(sized[layout], found, wanted.share, wanted.machine):
            console.print(line, markup=False, highlight=False)
    if plot is not None:
        draw(sized, wanted.name, found, wanted.share, wanted.machine, plot)
    return 0 if any(each.smallest is not None for each in sized.values()) else 1


def split(policy: Policy) -> Policy:
    """The policy with the handler that computes prompts apart. Raises ConfigError if it has none."""
    config = policy.config
    names = [handler.name for handler in config.handlers if handler.type == TWO_LEGS]
    if not names:
        raise ConfigError(f"{policy.name}: has no handler of the type {TWO_LEGS!r} for fleets with roles: add one")
    handler = policy.handler if policy.handler in names else names[0]
    models = (dataclasses.replace(config.models[0], handler=handler), *config.models[1:])
    return dataclasses.replace(policy, config=dataclasses.replace(config, models=models))
