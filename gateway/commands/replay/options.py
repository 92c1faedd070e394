"""The command line of ``kvgate replay``, ``tune`` and ``plan``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

WORKLOAD = "a trace (JSON lines as Mooncake's, or Azure's or BurstGPT's CSV); or 'groups' or 'agents': generated"


POLICIES = "default,round-robin,least-requests,llm-d,lmetric"
"""What ``kvgate replay`` compares on a trace."""


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
        "in virtual time and against a model of vLLM engines, once for each policy and seed. No engine, no GPU. With "
        "--tenants it compares ways to let the requests of several tenants wait.",
    )
    replay.add_argument("workload", metavar="TRACE", nargs="?", help=WORKLOAD)
    replay.add_argument(
        "--policies",
        metavar="NAME,...",
        help=f"names, YAML files, or 'all'; the others are compared with the first ({POLICIES}; with --tenants one, "
        "which places the requests: default)",
    )
    _add_tenants(replay)
    _add_scaling(replay)
    _add_cell(replay)
    replay.add_argument(
        "--deciders",
        type=int,
        metavar="N",
        help="also run each policy with N gateways, among which requests are dealt in turn, and compare",
    )
    replay.add_argument(
        "--delay",
        metavar="TIME",
        help="time until the others know what one of --deciders has booked, such as 3ms or 0.1s (3ms)",
    )
    replay.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    replay.add_argument("--plot", type=Path, metavar="FILE", help="draw the figures to this file (PNG or SVG)")
    replay.set_defaults(run=_replay)


def _add_tenants(replay: argparse.ArgumentParser) -> None:
    tenants = replay.add_argument_group("tenants")
    tenants.add_argument(
        "--tenants",
        metavar="SCENE,...",
        help="instead of a trace: scenes of several tenants: greedy-long, greedy-many, priority-burst, "
        "long-among-short, thrashing, or all",
    )
    tenants.add_argument("--ways", metavar="NAME,...", help="the ways to wait that are compared, or 'all' (all)")
    tenants.add_argument("--loads", metavar="X,...", help="relative to what the fleet can serve (0.8,1,1.2,1.5)")
    tenants.add_argument(
        "--capacity",
        metavar="SCENE=RATE,...",
        help="what the fleet can serve, in requests/s; not given: the most of which 99 %% meet their objectives if "
        "each is placed as it comes, found by bisection",
    )
    tenants.add_argument("--seconds", type=float, metavar="SECONDS", help="of each run, behind the warm-up (200)")
    tenants.add_argument("--page", type=Path, metavar="FILE", help="write the tables as Markdown to this file")


def _add_scaling(replay: argparse.ArgumentParser) -> None:
    scaling = replay.add_argument_group("scaling")
    scaling.add_argument(
        "--scale",
        metavar="NAME[:N],...",
        help="compare fleets of at most --endpoints engines whose size follows a trigger: wanted, running:N, queue:N, "
        "kv:SHARE, fixed:N, or 'usual', some of these",
    )
    scaling.add_argument("--join", metavar="TIME", help="time from an engine's start until it serves (60s)")
    scaling.add_argument("--start", type=int, metavar="N", help="engines at the beginning (what the mean load needs)")
    scaling.add_argument(
        "--wave",
        metavar="RATIO:PERIOD",
        help="let the load rise and fall: its peak is RATIO times its trough, PERIOD seconds from trough to trough",
    )


def _add_tune(commands: Any) -> None:
    tune = commands.add_parser(
        "tune",
        help="search a configuration's weights and parameters by replay",
        description="Searches the weights and parameters of a configuration's scorers by replay on the first half of a "
        "trace, and compares the best candidate with the given configuration on the other half. Recommends no change "
        "within the noise. TRACE, --speed, --machine and --endpoints each take several values, with commas between "
        "them: the search then looks for the best configuration over all combinations.",
    )
    tune.add_argument("workload", metavar="TRACE,...", help=WORKLOAD)
    tune.add_argument("config", metavar="CONFIG", help="a YAML file, or the name of a policy")
    tune.add_argument(
        "--objective", default="goodput", help="the figure to improve, such as ttft_mean or e2e_mean (goodput)"
    )
    tune.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="FIGURE[=PERCENT]",
        help="a figure that must not get worse by more than PERCENT (2) in any combination: 'p99 TTFT=5%%'",
    )
    tune.add_argument("--budget", type=int, default=40, metavar="N", help="candidates to try (40)")
    _add_cell(tune, several=True)
    tune.set_defaults(run=_tune)


def _add_plan(commands: Any) -> None:
    plan = commands.add_parser(
        "plan",
        help="say how many engines a trace needs",
        description="Says how many engines a workload needs to meet its objectives. It first checks whether any number "
        "of engines could meet them. Then it replays fleets of different sizes, by doubling and bisection, each with "
        "several seeds.",
        epilog="Exit code: 0 a size was found, 1 no size is enough, 2 the command line is wrong.",
    )
    plan.add_argument("workload", metavar="TRACE", help=WORKLOAD)
    plan.add_argument("--policy", default="default", metavar="NAME", help="a policy's name, or a YAML file (default)")
    plan.add_argument("--rate", type=float, metavar="RATE", help="total requests/s; not given: the trace's own rate")
    plan.add_argument(
        "--share",
        type=float,
        default=99.0,
        metavar="PERCENT",
        help="of the requests, and of each class, that must meet their objectives (99)",
    )
    plan.add_argument("--most", type=int, default=256, metavar="N", help="the largest number of engines to try (256)")
    plan.add_argument("--roles", action="store_true", help="also try fleets with separate prefill engines")
    plan.add_argument("--plot", type=Path, metavar="FILE", help="draw all sizes to this file (PNG or SVG)")
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
            help="number of engines (8); with their machines: '4 x 70b-tp4 + 4 x mine.yaml', and roles: "
            "'2 x 70b-tp4:prefill + 6 x 70b-tp4:decode'",
        )
        parser.add_argument(
            "--speed",
            type=str if several else float,
            metavar="RATE",
            help="requests/s/endpoint; not given: the trace's own rate, and for groups a closed loop",
        )
        parser.add_argument(
            "--change",
            action="append",
            metavar="AT:WHAT:ENDPOINT",
            help="at this second, engine number ENDPOINT (from 0) fails, is drained, or joins: 300:fail:2, "
            "300:leave:2, 400:join:2",
        )
    parser.add_argument(
        "--link",
        metavar="rate=25e9,latency=0.002",
        help="network for KV transfers between engines: bytes/s of each engine, and seconds (200 Gbit/s and 2 ms)",
    )
    parser.add_argument(
        "--machine",
        metavar="NAME",
        help="hardware and model of all engines: 70b-tp4 or 8b-h100; with a KV cache in host memory: 70b-tp4+host; or "
        "a YAML file with its figures (70b-tp4)",
    )
    parser.add_argument(
        "--slo",
        action="append",
        metavar="[CLASS:]ttft=2s,tpot=50ms",
        help="latency objectives, of all requests or of one class; goodput counts the requests that meet them (not "
        "given: requests have none, and goodput counts with 2 s and 50 ms)",
    )
    parser.add_argument(
        "--noise",
        metavar="SPREAD",
        help="noise of the engines' step times, as the standard deviation of their logarithm: 0.3; or step=0.1,"
        "prefill=0.3,stalls=0.01,stall=10: one step in a hundred takes 10 times as long (none)",
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs of each policy (3)")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs at a time (the number of cores)")
    parser.add_argument("--first", type=int, metavar="N", help="use only the first N requests of a trace")
    model = parser.add_argument_group("what the gateway sees")
    model.add_argument(
        "--scrape", type=float, default=1.0, metavar="SECONDS", help="time between two scrapes (1); 0: none"
    )
    model.add_argument("--event-delay", type=float, default=0.01, metavar="SECONDS", help="delay of KV events (0.01)")
    model.add_argument(
        "--believed",
        metavar="MACHINE",
        help="the machine that the gateway's configuration names for all engines (the real one of each); the cost "
        "model is fitted from there",
    )
    model.add_argument(
        "--cost-scale",
        type=float,
        default=1.0,
        metavar="X",
        help="make the cost model wrong by this factor, without fitting (1)",
    )
    model.add_argument("--step-scale", type=float, metavar="X", help="the same factor for decode steps (--cost-scale)")
    agents = parser.add_argument_group("agents")
    _whole(
        agents,
        ("sessions", "N", "sessions in total (100)"),
        ("live", "N", "sessions at a time, if there is no --speed (all)"),
        ("begin", "TOKENS", "length of a session's first prompt (20000)"),
        ("longest", "TOKENS", "largest length of a prompt (100000)"),
        ("results", "TOKENS", "tool results that a turn adds to the previous answer (2500)"),
    )
    agents.add_argument(
        "--gap", type=float, metavar="SECONDS", help="longest time between an answer and the next turn (60)"
    )
    groups = parser.add_argument_group("groups")
    _whole(
        groups,
        ("groups", "N", "system prompts (150)"),
        ("users", "N", "users of each system prompt (5)"),
        ("rounds", "N", "conversations of each user (8)"),
        ("turns", "N", "requests of a conversation (1)"),
        ("shared", "TOKENS", "length of a system prompt (6000; for agents 12000)"),
        ("own", "TOKENS", "length of a user's message (1200)"),
        ("output", "TOKENS", "length of an answer (1000; for agents 400)"),
        ("block", "TOKENS", "block size, also for agents (16, as in vLLM); with larger blocks a run is faster"),
    )
    groups.add_argument("--think", type=float, metavar="SECONDS", help="time between an answer and the next turn (10)")


def _whole(group: argparse._ArgumentGroup, *options: tuple[str, str, str]) -> None:
    """Options that are whole numbers: their name, the placeholder of the number, and the help text."""
    for name, metavar, text in options:
        group.add_argument(f"--{name}", type=int, metavar=metavar, help=text)


def _replay(options: argparse.Namespace) -> int:
    from gateway.commands.replay.command import cell, replay
    from gateway.commands.replay.policies import load_policies
    from gateway.errors import ConfigError

    if options.tenants is not None:
        return _tenants(options)
    for name in TENANTS_ONLY:
        if getattr(options, name) is not None and not (name == "page" and options.scale is not None):
            raise ConfigError(f"--{name} is of --tenants")
    if options.scale is not None:
        return _scale(options)
    for name in SCALE_ONLY:
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name} is of --scale")
    if options.workload is None:
        raise ConfigError("name a trace, 'groups' or 'agents', or scenes with --tenants")
    return replay(
        cell(vars(options)),
        load_policies(POLICIES if options.policies is None else options.policies),
        seeds=options.seeds,
        processes=_jobs(options),
        numbers=options.json,
        plot=options.plot,
    )


TENANTS_ONLY = ("ways", "loads", "capacity", "seconds", "page")
"""Options that mean nothing without ``--tenants``."""


SCALE_ONLY = ("join", "start", "wave")
"""Options that mean nothing without ``--scale``."""


def _scale(options: argparse.Namespace) -> int:
    from gateway.commands.replay.command import cell
    from gateway.commands.replay.policies import load_policy
    from gateway.commands.replay.scaling.command import asked, compare_scaling
    from gateway.errors import ConfigError

    if options.workload is None:
        raise ConfigError("name a trace, whose engines are to be scaled")
    for name in ("json", "plot", "change"):
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name} cannot be given with --scale")
    policy = load_policy("default" if options.policies is None else options.policies)
    wanted = asked(cell(vars(options)), policy, vars(options))
    return compare_scaling(wanted, options.page, processes=_jobs(options))


def _tenants(options: argparse.Namespace) -> int:
    from gateway.commands.replay.tenants.command import compare_tenants
    from gateway.commands.replay.tenants.options import asked, files

    return compare_tenants(asked(vars(options)), files(vars(options)), processes=_jobs(options))


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
    from gateway.commands.replay.fleet import machine
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
