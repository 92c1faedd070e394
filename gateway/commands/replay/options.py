"""The command line of ``kvgate replay``, ``tune`` and ``plan``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

WORKLOAD = "a trace (JSON lines as Mooncake's, or Azure's or BurstGPT's CSV); or 'groups' or 'agents': generated"


def add_replay(commands: Any) -> None:
    """Add the three commands to ``commands``, from argparse's ``add_subparsers``. Each sets ``run`` to the function
    that runs it."""
    _add_replay(commands)
    _add_tune(commands)
    _add_plan(commands)


def _add_replay(commands: Any) -> None:
    replay = commands.add_parser(
        "replay",
        help="compare policies on a trace, in virtual time",
        description="Runs a workload through the gateway's own scheduler, scorers, ledger, cost model and cache index, "
        "in virtual time and against a model of vLLM engines, once for each policy and seed. No engine, no GPU.",
    )
    replay.add_argument("workload", metavar="TRACE", help=WORKLOAD)
    replay.add_argument(
        "--policies",
        default="default,round-robin,least-requests,llm-d,lmetric",
        metavar="NAME,...",
        help="names, YAML files, or 'all'; the first is what the others are compared with",
    )
    _add_cell(replay)
    replay.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    replay.add_argument("--plot", type=Path, metavar="FILE", help="draw them there (PNG or SVG)")
    replay.set_defaults(run=_replay)


def _add_tune(commands: Any) -> None:
    tune = commands.add_parser(
        "tune",
        help="search a configuration's weights and parameters by replay",
        description="Searches the weights and parameters of a configuration's scorers by replay on the first half of a "
        "trace, and compares the best with the given one on the other half. Recommends nothing that is in the noise. "
        "TRACE, --speed, --machine and --endpoints may each be several, with commas between them: what is searched is "
        "then what is best over all combinations.",
    )
    tune.add_argument("workload", metavar="TRACE,...", help=WORKLOAD)
    tune.add_argument("config", metavar="CONFIG", help="a YAML file, or the name of a policy")
    tune.add_argument("--objective", default="goodput", help="such as ttft_mean or e2e_mean (goodput)")
    tune.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="FIGURE[=PERCENT]",
        help="what must not get worse in any cell, by more than so many percent (2): 'p99 TTFT=5%%'",
    )
    tune.add_argument("--budget", type=int, default=40, metavar="N", help="candidates to try (40)")
    _add_cell(tune, several=True)
    tune.set_defaults(run=_tune)


def _add_plan(commands: Any) -> None:
    plan = commands.add_parser(
        "plan",
        help="say how many engines a trace needs",
        description="Says how many engines a workload needs to be answered within its objectives. First what cannot be "
        "had at any size; then sizes are replayed, by doubling and bisection, each by several seeds.",
        epilog="Exit code: 0 a size was found, 1 none will do, 2 the command line is wrong.",
    )
    plan.add_argument("workload", metavar="TRACE", help=WORKLOAD)
    plan.add_argument("--policy", default="default", metavar="NAME", help="a name, or a YAML file (default)")
    plan.add_argument("--rate", type=float, metavar="RATE", help="requests/s in all; not given: a trace's own pace")
    plan.add_argument(
        "--share", type=float, default=99.0, metavar="PERCENT", help="of the requests, and of each class (99)"
    )
    plan.add_argument("--most", type=int, default=256, metavar="N", help="engines to try (256)")
    plan.add_argument("--roles", action="store_true", help="look for fleets whose prompts are computed apart, too")
    plan.add_argument("--plot", type=Path, metavar="FILE", help="draw all sizes there (PNG or SVG)")
    _add_cell(plan, fleet=False)
    plan.set_defaults(run=_plan)


def _add_cell(parser: argparse.ArgumentParser, *, several: bool = False, fleet: bool = True) -> None:
    """Add the options that make a ``Cell``. ``several``: some of them may have several values, which make several
    cells. ``fleet``: also the options for the number of engines and the load of each."""
    if fleet:
        parser.add_argument(
            "--endpoints",
            default="8",
            metavar="N",
            help="engines (8); or kinds of them: '4 x 70b-tp4 + 4 x mine.yaml', and roles: '2 x 70b-tp4:prefill + 6 x "
            "70b-tp4:decode'",
        )
        parser.add_argument(
            "--speed",
            type=str if several else float,
            metavar="RATE",
            help="requests/s/endpoint; not given: a trace's own pace, and of groups a closed loop",
        )
        parser.add_argument(
            "--change",
            action="append",
            metavar="AT:WHAT:ENDPOINT",
            help="at that second an engine (from 0) fails, is drained, or joins: 300:fail:2, 300:leave:2, 400:join:2",
        )
    parser.add_argument(
        "--link",
        metavar="rate=25e9,latency=0.002",
        help="by which KV moves between engines: bytes/s of each of them, and seconds (200 Gbit/s and 2 ms)",
    )
    parser.add_argument(
        "--machine",
        metavar="NAME",
        help="of all engines: 70b-tp4 or 8b-h100; with a host tier: 70b-tp4+host; or a YAML file with its figures "
        "(70b-tp4)",
    )
    parser.add_argument(
        "--slo",
        action="append",
        metavar="[CLASS:]ttft=2s,tpot=50ms",
        help="what requests ask to be answered within, all or those of a class, and what goodput counts (nothing is "
        "asked; 2 s and 50 ms count)",
    )
    parser.add_argument(
        "--noise",
        metavar="SPREAD",
        help="of the engines' step times, as the standard deviation of their logarithm: 0.3; or step=0.1,prefill=0.3,"
        "stalls=0.01,stall=10: a hundredth of the steps takes 10 times as long (none)",
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs of each policy (3)")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs at a time (as many as there are cores)")
    parser.add_argument("--first", type=int, metavar="N", help="of a trace: its first requests only")
    model = parser.add_argument_group("what the gateway sees")
    model.add_argument("--scrape", type=float, default=1.0, metavar="SECONDS", help="between two scrapes (1); 0: none")
    model.add_argument("--event-delay", type=float, default=0.01, metavar="SECONDS", help="of KV events (0.01)")
    model.add_argument(
        "--believed",
        metavar="MACHINE",
        help="what it is told that all engines are (each its own): fitting finds the rest",
    )
    model.add_argument(
        "--cost-scale", type=float, default=1.0, metavar="X", help="cost model wrong by this factor, and not fitted (1)"
    )
    model.add_argument("--step-scale", type=float, metavar="X", help="of decode steps, where it is not --cost-scale")
    agents = parser.add_argument_group("agents")
    _whole(
        agents,
        ("sessions", "N", "in all (100)"),
        ("live", "N", "at once, where no --speed says how often they begin (all)"),
        ("begin", "TOKENS", "of a session's first prompt (20000)"),
        ("longest", "TOKENS", "of a prompt (100000)"),
        ("results", "TOKENS", "that a turn adds beside the answer before it (2500)"),
    )
    agents.add_argument("--gap", type=float, metavar="SECONDS", help="at most, between an answer and a turn (60)")
    groups = parser.add_argument_group("groups")
    _whole(
        groups,
        ("groups", "N", "system prompts (150)"),
        ("users", "N", "of each (5)"),
        ("rounds", "N", "conversations of each user (8)"),
        ("turns", "N", "requests of a conversation (1)"),
        ("shared", "TOKENS", "of a system prompt (6000; of agents 12000)"),
        ("own", "TOKENS", "of what a user says (1200)"),
        ("output", "TOKENS", "of an answer (1000; of agents 400)"),
        ("block", "TOKENS", "of a block, of agents too (16, as vLLM's); with larger ones a run is faster"),
    )
    groups.add_argument("--think", type=float, metavar="SECONDS", help="between an answer and the next turn (10)")


def _whole(group: argparse._ArgumentGroup, *options: tuple[str, str, str]) -> None:
    """Options that are whole numbers: their name, the placeholder of the number, and the help text."""
    for name, metavar, text in options:
        group.add_argument(f"--{name}", type=int, metavar=metavar, help=text)


def _replay(options: argparse.Namespace) -> int:
    from gateway.commands.replay.command import cell, replay
    from gateway.commands.replay.policies import load_policies

    return replay(
        cell(vars(options)),
        load_policies(options.policies),
        seeds=options.seeds,
        processes=_jobs(options),
        numbers=options.json,
        plot=options.plot,
    )


def _tune(options: argparse.Namespace) -> int:
    from gateway.commands.replay.command import cells
    from gateway.commands.replay.gains import keep
    from gateway.commands.replay.policies import load_policy
    from gateway.commands.replay.tune import tune

    return tune(
        cells(vars(options)),
        load_policy(options.config),
        objective=options.objective,
        keeps=[keep(text) for text in options.keep],
        seeds=options.seeds,
        budget=options.budget,
        processes=_jobs(options),
    )


def _plan(options: argparse.Namespace) -> int:
    from gateway.commands.replay.command import cell
    from gateway.commands.replay.machines import machine
    from gateway.commands.replay.plan import Plan, plan
    from gateway.commands.replay.policies import load_policy

    name = options.machine or "70b-tp4"
    wanted = Plan(
        cell({**vars(options), "endpoints": "1", "machine": name}),
        machine(name),
        load_policy(options.policy),
        rate=options.rate,
        share=options.share / 100,
        seeds=options.seeds,
        most=options.most,
        processes=_jobs(options),
        roles=options.roles,
    )
    return plan(wanted, plot=options.plot)


def _jobs(options: argparse.Namespace) -> int:
    return (os.cpu_count() or 1) if options.jobs is None else options.jobs
