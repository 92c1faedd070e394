"""Runs ``kvgate explain``: asks a running gateway, or a gateway made for the question, and prints the answer."""

from __future__ import annotations

import sys
from typing import Any

import orjson
from rich.console import Console

from gateway.api.routes import ROUTES
from gateway.app import Gateway
from gateway.commands.explain.running_gateway import Question, RunningGateway, Unanswered, admin_url
from gateway.commands.explain.tables import show_account, show_decision
from gateway.config.settings import Config
from gateway.errors import ConfigError, GatewayError

SYNC = 5.0
"""Seconds to wait for the engines' event history: a full replay buffer of 10,000 batches takes about one."""

WIDTH = 240
"""Columns of the output where there is no terminal."""


async def explain(
    config: Config | None, question: Question, *, url: str | None, alone: bool = False, as_json: bool = False
) -> int:
    """Print where ``question`` would go now. Returns the exit code: 0, or 1 if no endpoint could be chosen.

    ``url``: the admin listener of a running gateway. Without it, the gateway of ``config`` is asked if one runs with
    the same engines, unless ``alone``; otherwise the engines of ``config`` are asked. Raises ConfigError.
    """
    console = _console()
    try:
        account = None
        if url is not None:
            async with RunningGateway(url) as gateway:
                account = await gateway.explain(question)
        elif config is not None and not alone:
            account = await _found(config, question)
        if account is None:
            assert config is not None
            account = await _alone(config, question)
    except ConfigError:
        raise
    except GatewayError as error:
        console.print(error.message, style="red", markup=False)
        return 1
    if as_json:
        _print_json(account)
    else:
        show_account(console, account)
    return 1 if account["error"] else 0


async def explain_request(config: Config | None, request_id: str, *, url: str | None, as_json: bool = False) -> int:
    """Print where a past request went. Returns the exit code: 0, or 1 if the gateway does not know the request. Raises
    ConfigError."""
    console = _console()
    where = url or (config and admin_url(config))
    if not where:
        raise ConfigError("--request asks a gateway that runs: say which by --url, or a CONFIG with listen.admin")
    try:
        async with RunningGateway(where) as gateway:
            decisions = await gateway.decisions(request_id)
    except Unanswered as error:
        console.print(error.message, style="red", markup=False)
        return 1
    if not decisions:
        console.print(
            f"{where} has no decision of a request {request_id!r}: it keeps the last thousand at most, and a "
            "refused request has none",
            style="red",
            markup=False,
        )
        return 1
    if as_json:
        _print_json({"decisions": decisions})
    else:
        for decision in decisions:
            show_decision(console, decision)
    return 0


async def _found(config: Config, question: Question) -> dict[str, Any] | None:
    """The explanation of a running gateway with this ``config``; None if there is none."""
    if (where := admin_url(config)) is None:
        return None
    async with RunningGateway(where) as gateway:
        try:
            if not await gateway.serves(config):
                _note(
                    f"the gateway at {where} serves other models or engines than this configuration, and was not asked"
                )
                return None
        except Unanswered:
            return None
        account = await gateway.explain(question)
    _note(f"asked the gateway at {where}")
    return account


async def _alone(config: Config, question: Question) -> dict[str, Any]:
    """The explanation of a gateway of ``config`` that has just started: no request is queued, and its cost model has
    learned nothing."""
    gateway = Gateway(config)
    try:
        with Console(stderr=True).status("asking the engines"):
            await gateway.start()
            synced = await gateway.feed.synced(SYNC)
        headers = dict(question.headers)
        account = await gateway.explainer.explain(
            *(ROUTES[question.path], question.raw, headers.pop("content-type", ""), headers),
            *(headers.pop("cookie", ""), question.tenant),
        )
    finally:
        await gateway.close()
    if not synced:
        _note("some engines' event histories were not read in time: matches may be too low")
    return account


def _console() -> Console:
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)  # a file or a pipe has no width to wrap at
    return console


def _print_json(content: object) -> None:
    print(orjson.dumps(content, option=orjson.OPT_INDENT_2).decode())


def _note(text: str) -> None:
    print(f"kvgate: {text}", file=sys.stderr)
