"""The command ``kvgate``: serve, check, doctor, explain, replay, tune, demo."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop
from rich.console import Console

from gateway import __version__
from gateway.config.clashes import clashes
from gateway.config.describe import describe
from gateway.config.load import load
from gateway.config.settings import Config
from gateway.doctor.finding import Report
from gateway.errors import ConfigError

EXIT_CONFIG = 2
"""The exit code of a configuration that cannot be used: systemd then knows that a restart is of no use."""


WORKLOAD = "a trace (JSON lines as Mooncake's, or Azure's or BurstGPT's CSV); or 'groups' or 'agents': generated"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 1 (it failed), 2 (the command line or the configuration is wrong)."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except ConfigError as error:
        print(f"kvgate: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `kvgate check ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvgate", description="One OpenAI endpoint in front of vLLM engines that knows their KV caches."
    )
    parser.add_argument("--version", action="version", version=f"kvgate {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="serve clients")
    serve.add_argument("config", type=Path, nargs="?", default=Path("plugins.yaml"), metavar="CONFIG")
    serve.add_argument("--host", help="instead of listen.host")
    serve.add_argument("--port", type=int, help="instead of listen.port; 0: any free one")
    serve.add_argument("--log-format", choices=("json", "text"))
    serve.add_argument("--log-level", choices=("debug", "info", "warning", "error"))
    serve.set_defaults(run=_serve)

    check = commands.add_parser("check", help="check a configuration and print it with its defaults filled in")
    check.add_argument("config", type=Path, metavar="CONFIG")
    check.add_argument(
        "--probe",
        action="store_true",
        help="let each prefill engine compute one short prompt, to learn where its KV can be fetched; "
        "it holds the prompt's blocks for 30 s",
    )
    check.set_defaults(run=_check)

    doctor = commands.add_parser(
        "doctor",
        help="ask each engine whether what the gateway would know of it is true",
        description="Asks each engine whether what the gateway would know of it is true: the model that it serves, its "
        "token ids, its block size, its KV events and their replay. Needs no running gateway. Sends each engine a "
        "handful of small GETs, three texts to tokenize, and for each data-parallel rank one completion of one token "
        "from a prompt of little more than a block (a second one if the first is not announced).",
        epilog="Exit code: 0 all is well, 1 something is red, 2 the configuration cannot be used.",
    )
    doctor.add_argument("config", type=Path, metavar="CONFIG")
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    doctor.add_argument(
        "--timeout", type=float, default=90.0, metavar="SECONDS", help="for one engine; all are asked at once (90)"
    )
    doctor.add_argument(
        "--hash-seed", action="append", default=[], metavar="SEED", help="a PYTHONHASHSEED that engines have"
    )
    doctor.set_defaults(run=_doctor)

    explain = commands.add_parser(
        "explain",
        help="say where a prompt would go now, or where a request went, and why",
        description="Asks a gateway that runs where a prompt would go now, or where a request went, and why. Nothing "
        "is placed, and no engine computes anything. Where no gateway runs, the engines are asked what they hold.",
    )
    explain.add_argument(
        "config", type=Path, nargs="?", metavar="CONFIG", help="its gateway is asked if it runs; else its engines are"
    )
    explain.add_argument("--url", help="the admin listener of a running gateway, such as http://127.0.0.1:9000")
    what = explain.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--prompt-file",
        type=Path,
        help="a request body as JSON (with messages or prompt), or a prompt as plain text",
    )
    what.add_argument("--request", metavar="ID", help="a request of the past, by its x-request-id")
    explain.add_argument("--model", help="a model, alias or adapter; not given: the body's")
    explain.add_argument("--path", help="where a client would send it, such as /v1/embeddings")
    explain.add_argument(
        "--header", action="append", default=[], metavar="NAME:VALUE", help="as a client would send it"
    )
    explain.add_argument("--alone", action="store_true", help="ask the engines of CONFIG, even if its gateway runs")
    explain.add_argument("--json", action="store_true", help="print all of it as JSON")
    explain.set_defaults(run=_explain)

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

    demo = commands.add_parser("demo", help="four simulated engines, round robin against the default profile")
    demo.add_argument("--output", type=Path, default=Path("out/demo.png"), help="where the chart goes")
    demo.set_defaults(run=_demo)
    return parser


def _add_cell(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """What ``gateway.replay.cell.Cell`` is made of; ``several``: what more than one of them are made of."""
    parser.add_argument(
        "--endpoints", default="8", metavar="N", help="engines (8); or kinds of them: '4 x 70b-tp4 + 4 x mine.yaml'"
    )
    parser.add_argument(
        "--speed",
        type=str if several else float,
        metavar="RATE",
        help="requests/s/endpoint; not given: a trace's own pace, and of groups a closed loop",
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
    for name, metavar, text in (
        ("sessions", "N", "in all (100)"),
        ("live", "N", "at once, where no --speed says how often they begin (all)"),
        ("begin", "TOKENS", "of a session's first prompt (20000)"),
        ("longest", "TOKENS", "of a prompt (100000)"),
        ("results", "TOKENS", "that a turn adds beside the answer before it (2500)"),
    ):
        agents.add_argument(f"--{name}", type=int, metavar=metavar, help=text)
    agents.add_argument("--gap", type=float, metavar="SECONDS", help="at most, between an answer and a turn (60)")
    groups = parser.add_argument_group("groups")
    for name, metavar, text in (
        ("groups", "N", "system prompts (150)"),
        ("users", "N", "of each (5)"),
        ("rounds", "N", "conversations of each user (8)"),
        ("turns", "N", "requests of a conversation (1)"),
        ("shared", "TOKENS", "of a system prompt (6000; of agents 12000)"),
        ("own", "TOKENS", "of what a user says (1200)"),
        ("output", "TOKENS", "of an answer (1000; of agents 400)"),
        ("block", "TOKENS", "of a block, of agents too (16, as vLLM's); with larger ones a run is faster"),
    ):
        groups.add_argument(f"--{name}", type=int, metavar=metavar, help=text)
    groups.add_argument("--think", type=float, metavar="SECONDS", help="between an answer and the next turn (10)")


def _serve(options: argparse.Namespace) -> int:
    from gateway.app import override, serve

    def read() -> Config:
        config = load(options.config, os.environ)
        return override(config, options.host, options.port, options.log_format, options.log_level)

    uvloop.run(serve(read))
    return 0


def _check(options: argparse.Namespace) -> int:
    from gateway.app import Gateway
    from gateway.check import check

    config = load(options.config, os.environ)

    async def examine() -> tuple[list[str], list[str]]:
        gateway = Gateway(config)
        console = Console(stderr=True)
        try:
            with console.status("loading tokenizers"):
                await gateway.load()
            with console.status("asking the engines"):
                tokens = {serving.model.name: serving.tokens for serving in gateway.directory.servings}
                return await check(config, gateway.scheduler, gateway.clock, probe=options.probe, tokens=tokens)
        finally:
            await gateway.close()

    warnings, notes = uvloop.run(examine())
    print(describe(config))
    problems = clashes()
    for line in (*notes, *(f"warning: {warning}" for warning in warnings), *problems):
        print(f"kvgate: {line}", file=sys.stderr)
    print(f"{options.config}: {'in order, but for the above' if problems or warnings else 'in order'}", file=sys.stderr)
    return 1 if problems else 0


def _doctor(options: argparse.Namespace) -> int:
    from gateway.app import Gateway
    from gateway.doctor.finding import healthy
    from gateway.doctor.run import as_json, diagnose
    from gateway.doctor.show import show

    if not options.timeout > 0:
        raise ConfigError("--timeout must be above 0 seconds")
    config = load(options.config, os.environ)

    async def examine() -> tuple[list[Report], dict[str, list[str]]]:
        gateway = Gateway(config)
        console = Console(stderr=True)
        try:
            with console.status("loading tokenizers"):
                await gateway.load()
            with console.status("asking the engines"):
                return await diagnose(gateway, timeout=options.timeout, seeds=options.hash_seed)
        finally:
            await gateway.close()

    reports, notes = uvloop.run(examine())
    if options.json:
        print(json.dumps(as_json(reports, notes), indent=1))
    else:
        show(reports, notes)
    return 0 if healthy(reports) else 1


def _explain(options: argparse.Namespace) -> int:
    from gateway.explain.question import read_question
    from gateway.explain.run import explain, explain_request
    from gateway.explain.running import checked

    if options.config is None and options.url is None:
        raise ConfigError("say whom to ask: a CONFIG, or --url of a running gateway's admin listener")
    if options.alone and (options.url is not None or options.request is not None):
        raise ConfigError("--alone asks no gateway that runs: it goes with --prompt-file, and without --url")
    url = None if options.url is None else checked(options.url)
    config = None if options.config is None else load(options.config, os.environ)
    if options.request is not None:
        return uvloop.run(explain_request(config, options.request, url=url, as_json=options.json))
    question = read_question(options.prompt_file, options.model, options.path, options.header)
    return uvloop.run(explain(config, question, url=url, alone=options.alone, as_json=options.json))


def _replay(options: argparse.Namespace) -> int:
    from gateway.replay.command import cell, replay
    from gateway.replay.policies import policies

    return replay(
        cell(vars(options)),
        policies(options.policies),
        seeds=options.seeds,
        processes=_jobs(options),
        numbers=options.json,
        plot=options.plot,
    )


def _tune(options: argparse.Namespace) -> int:
    from gateway.replay.command import cells
    from gateway.replay.gains import keep
    from gateway.replay.policies import policy
    from gateway.replay.tune import tune

    return tune(
        cells(vars(options)),
        policy(options.config),
        objective=options.objective,
        keeps=[keep(text) for text in options.keep],
        seeds=options.seeds,
        budget=options.budget,
        processes=_jobs(options),
    )


def _jobs(options: argparse.Namespace) -> int:
    return (os.cpu_count() or 1) if options.jobs is None else options.jobs


def _demo(options: argparse.Namespace) -> int:
    from gateway.demo.run import run

    code: int = run(options.output)
    return code


if __name__ == "__main__":
    sys.exit(main())
