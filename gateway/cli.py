"""The command ``kvgate``: serve, epp, check, doctor, explain, envoy, keys, convert, replay, tune, plan, demo."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import uvloop

from gateway import __version__
from gateway.commands.envoy.options import add_envoy
from gateway.commands.epp_flags import of_llm_d, read_flags
from gateway.commands.keys.options import add_keys
from gateway.commands.replay.options import add_replay
from gateway.config.document import text_of
from gateway.config.load import load
from gateway.config.override import override
from gateway.config.settings import Config
from gateway.config.share import of_worker
from gateway.core.build import BUILD
from gateway.epp.settings import PickerSettings
from gateway.errors import ConfigError
from gateway.sharing.seat import OtherVersion
from gateway.standard_streams import open_standard_streams
from gateway.tokens.libraries import set_environment
from gateway.workers.cores import worker_count

if TYPE_CHECKING:
    from gateway.app import Gateway

T = TypeVar("T")

EXIT_CONFIG = 2
"""The exit code of a configuration that cannot be used: systemd then knows that a restart is of no use."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 1 (it failed), 2 (the command line or the configuration is wrong)."""
    open_standard_streams()
    set_environment(os.environ)
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        # An image that stands in for llm-d's gets its arguments alone, without the name of a command.
        own = given[1:] if given[:1] == ["epp"] else given
        if own and own[0].startswith("-") and of_llm_d(own):
            return _epp_as_llm_d(own)
        options = _parser().parse_args(given)
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
    parser.add_argument("--version", action="version", version=f"kvgate {__version__} ({BUILD})")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="serve clients")
    serve.add_argument("config", type=Path, nargs="?", default=Path("plugins.yaml"), metavar="CONFIG")
    serve.add_argument("--host", help="replaces listen.host")
    serve.add_argument("--port", type=int, help="replaces listen.port; 0: any free port")
    serve.add_argument("--log-format", choices=("json", "text"), help="replaces log.format")
    serve.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="replaces log.level")
    serve.set_defaults(run=_serve)

    epp = commands.add_parser(
        "epp",
        help="pick endpoints for a gateway (Envoy, Istio, agentgateway, ...) and serve no clients",
        description="The endpoint picker alone: the gateway in front carries the requests, and asks by ext-proc where "
        "each shall go. `kvgate serve` does both where the configuration has epp. With the arguments of llm-d's picker "
        "(--pool-name, --config-file, ...) it does as that does.",
    )
    epp.add_argument("config", type=Path, nargs="?", default=Path("plugins.yaml"), metavar="CONFIG")
    epp.add_argument("--log-format", choices=("json", "text"), help="replaces log.format")
    epp.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="replaces log.level")
    epp.set_defaults(run=_epp)

    check = commands.add_parser("check", help="check a configuration and print it with its defaults filled in")
    check.add_argument("config", type=Path, metavar="CONFIG")
    check.add_argument(
        "--probe",
        action="store_true",
        help="let each prefill engine compute one short prompt, to learn the address from which its KV is fetched; "
        "the engine holds the prompt's blocks for 30 s",
    )
    check.set_defaults(run=_check)

    doctor = commands.add_parser(
        "doctor",
        help="check each engine against what the gateway would believe of it",
        description="Checks each engine against what the gateway would believe of it: its model, token ids, block "
        "size, KV events and their replay. Needs no running gateway. Sends each engine a few small GETs, three texts "
        "to tokenize, and for each data-parallel rank one completion of one token. Its prompt is little longer than a "
        "block. If the engine does not announce this block, it gets a second prompt.",
        epilog="Exit code: 0 nothing is red, 1 something is red, 2 the configuration cannot be used.",
    )
    doctor.add_argument("config", type=Path, metavar="CONFIG")
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    doctor.add_argument(
        "--timeout",
        type=float,
        default=90.0,
        metavar="SECONDS",
        help="for each engine; all are checked at the same time (90)",
    )
    doctor.add_argument(
        "--hash-seed", action="append", default=[], metavar="SEED", help="a PYTHONHASHSEED that the engines use"
    )
    doctor.set_defaults(run=_doctor)

    explain = commands.add_parser(
        "explain",
        help="show where a prompt would go now, or where a request went, and why",
        description="Asks the running gateway where a prompt would go now, or where a request went, and why. It places "
        "nothing, and no engine computes anything. If no gateway runs, the command reads the engines' cache events "
        "itself.",
    )
    explain.add_argument(
        "config", type=Path, nargs="?", metavar="CONFIG", help="the configuration of the gateway, or of the engines"
    )
    explain.add_argument("--url", help="the admin listener of a running gateway, such as http://127.0.0.1:9000")
    what = explain.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--prompt-file",
        type=Path,
        help="a request body as JSON (with messages or prompt), or a prompt as plain text",
    )
    what.add_argument("--request", metavar="ID", help="the x-request-id of a past request")
    explain.add_argument("--model", help="a model, alias or adapter; not given: the one in the body")
    explain.add_argument("--path", help="the path to which a client would send it, such as /v1/embeddings")
    explain.add_argument(
        "--header", action="append", default=[], metavar="NAME:VALUE", help="a header that a client would send"
    )
    explain.add_argument("--tenant", default="", help="whose it is; not given: that of a request without a key")
    explain.add_argument("--alone", action="store_true", help="read the engines' events, even if the gateway runs")
    explain.add_argument("--json", action="store_true", help="print the whole answer as JSON")
    explain.set_defaults(run=_explain)

    add_envoy(commands)
    add_keys(commands)

    convert = commands.add_parser(
        "convert",
        help="print what a configuration of llm-d's endpoint picker is as a plugins.yaml",
        description="Reads an EndpointPickerConfig of llm-d and prints a plugins.yaml that decides as it does. Its "
        "comments say what became of each plugin. What is missing or only near is also printed on stderr.",
        epilog="Exit code: 0 it was converted, 2 llm-d would not take the file, or a plugin in it is not known.",
    )
    convert.add_argument("file", type=Path, metavar="FILE")
    convert.add_argument("--model", help="the model's name, which that file does not have")
    convert.add_argument(
        "--endpoint", action="append", default=[], metavar="URL", help="an engine; may be given several times"
    )
    convert.set_defaults(run=_convert)

    add_replay(commands)

    demo = commands.add_parser("demo", help="four simulated engines, round robin against the default profile")
    demo.add_argument("--output", type=Path, default=Path("out/demo.png"), help="file for the chart")
    demo.add_argument(
        "--envoy",
        type=Path,
        metavar="PROGRAM",
        help="also through this Envoy, which asks 'kvgate epp' about each request",
    )
    demo.set_defaults(run=_demo)
    return parser


def _serve(options: argparse.Namespace) -> int:
    from gateway.restart.takeover import TakeOver
    from gateway.workers.post import Post
    from gateway.workers.words import OTHER_VERSION

    def check(text: str) -> Config:
        config = load(options.config, os.environ, text=text)
        return override(config, options.host, options.port, options.log_format, options.log_level)

    try:
        post = Post.from_environment(os.environ)
    except OtherVersion as error:
        print(f"kvgate: {error}: a worker of it cannot serve there", file=sys.stderr)
        return OTHER_VERSION
    if post is not None:
        from gateway.serve import serve

        uvloop.run(serve(lambda: of_worker(check(post.read_text()), post.seat.count), post=post))
        return 0
    with TakeOver(os.environ) as before:  # the process that started this one hears of any error
        text = text_of(options.config)
        config = check(text)
        if (count := worker_count(config.listen.workers)) > 1:
            from gateway.workers.service import supervise

            return uvloop.run(supervise(options.config, text, check, count, environ=os.environ, before=before))
        from gateway.serve import serve  # not before: a parent of workers has no use for what serves

        first = [config]
        uvloop.run(serve(lambda: first.pop() if first else check(text_of(options.config)), before=before))
    return 0


def _epp(options: argparse.Namespace) -> int:
    def read() -> Config:
        config = load(options.config, os.environ)
        config = override(config, None, None, options.log_format, options.log_level)
        try:
            return config if config.epp is not None else replace(config, epp=PickerSettings())
        except ValueError as error:
            raise ConfigError(f"{options.config}: {error}") from None

    return _pick(read(), read)


def _epp_as_llm_d(arguments: Sequence[str]) -> int:
    from gateway.commands.epp_config import config_of

    flags = read_flags(arguments, os.environ)
    config, converted = config_of(flags)
    for line in (*flags.notes, *converted.losses):
        print(f"kvgate: {line}", file=sys.stderr)
    return _pick(config, lambda: config_of(flags)[0])


def _pick(config: Config, read: Callable[[], Config]) -> int:
    """``read``: as the configuration is when it is read again."""
    from gateway.serve import serve  # takes half a second: after the file was checked

    first = [config]
    uvloop.run(serve(lambda: first.pop() if first else read(), proxy=False))
    return 0


def _check(options: argparse.Namespace) -> int:
    config = load(options.config, os.environ)
    from gateway.commands.check import check
    from gateway.commands.check_sources import of_sources
    from gateway.config.describe import describe
    from gateway.config.registry import clashes

    async def examine(gateway: Gateway) -> tuple[list[str], list[str]]:
        tokens = {runtime.model.name: runtime.tokens for runtime in gateway.directory.runtimes}
        found = gateway.reloading.discovering
        warnings, notes = of_sources(found)
        of_found = await check(found.config, gateway.scheduler, gateway.clock, probe=options.probe, tokens=tokens)
        return [*warnings, *of_found[0]], [*notes, *of_found[1]]

    warnings, notes = _examine(config, examine)
    print(describe(config))
    problems = clashes()
    for line in (*notes, *(f"warning: {warning}" for warning in warnings), *problems):
        print(f"kvgate: {line}", file=sys.stderr)
    print(f"{options.config}: {'in order, but for the above' if problems or warnings else 'in order'}", file=sys.stderr)
    return 1 if problems else 0


def _examine(config: Config, examine: Callable[[Gateway], Coroutine[Any, Any, T]]) -> T:
    """Run ``examine`` with a gateway of ``config`` that serves nobody; its tokenizers are loaded, and its sources of
    endpoints were asked."""
    from rich.console import Console

    from gateway.app import Gateway  # takes half a second: after the file was checked

    async def examined() -> T:
        gateway, console = Gateway(config), Console(stderr=True)
        try:
            with console.status("loading tokenizers"):
                await gateway.load()
            with console.status("asking the sources of endpoints"):
                await gateway.reloading.discovering.once()
            with console.status("asking the engines"):
                return await examine(gateway)
        finally:
            await gateway.close()

    return uvloop.run(examined())


def _doctor(options: argparse.Namespace) -> int:
    if not options.timeout > 0:
        raise ConfigError("--timeout must be above 0 seconds")
    config = load(options.config, os.environ)
    from gateway.commands.doctor.diagnose import as_json, diagnose
    from gateway.commands.doctor.finding import healthy
    from gateway.commands.doctor.tables import show

    reports, notes = _examine(
        config, lambda gateway: diagnose(gateway, timeout=options.timeout, seeds=options.hash_seed)
    )
    if options.json:
        print(json.dumps(as_json(reports, notes), indent=1))
    else:
        show(reports, notes)
    return 0 if healthy(reports) else 1


def _explain(options: argparse.Namespace) -> int:
    from gateway.commands.explain.report import explain, explain_request
    from gateway.commands.explain.running_gateway import checked, read_question

    if options.config is None and options.url is None:
        raise ConfigError("give a CONFIG, or the --url of a running gateway's admin listener")
    if options.alone and (options.url is not None or options.request is not None):
        raise ConfigError("--alone does not ask a running gateway: use it with --prompt-file, and without --url")
    url = None if options.url is None else checked(options.url)
    config = None if options.config is None else load(options.config, os.environ)
    if options.request is not None:
        return uvloop.run(explain_request(config, options.request, url=url, as_json=options.json))
    question = read_question(options.prompt_file, options.model, options.path, options.header)
    question = replace(question, tenant=options.tenant)
    return uvloop.run(explain(config, question, url=url, alone=options.alone, as_json=options.json))


def _convert(options: argparse.Namespace) -> int:
    from gateway.commands.convert.command import run

    return run(options.file, options.model, options.endpoint)


def _demo(options: argparse.Namespace) -> int:
    from gateway.commands.demo.comparison import run

    code: int = run(options.output, envoy=options.envoy)
    return code


if __name__ == "__main__":
    sys.exit(main())
