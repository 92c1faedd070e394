"""``kvgate explain``: where a prompt would go now, and why, against the engines as they are.

Runs the same verbs as the director (parse, tokenize, match, schedule) and stops before it would reserve.
"""

from __future__ import annotations

from pathlib import Path

import orjson
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gateway.api.parse import parse
from gateway.api.routes import ROUTES
from gateway.app import Gateway
from gateway.config.settings import Config
from gateway.errors import ConfigError, GatewayError
from gateway.framework import Endpoint, Plan, Request
from gateway.proxy.identify import identify, tokenized
from gateway.scheduling.trace import ProfileTrace, Trace

SYNC = 5.0
"""Seconds to wait for the engines' event history: a full replay buffer of 10,000 batches takes about one."""

WIDTH = 200
"""Columns of the output where there is no terminal."""


async def explain(config: Config, model: str, prompt_file: Path) -> int:
    """Print the decision; returns 0, or 1 if no endpoint could be chosen. Raises ConfigError for a bad prompt file."""
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH  # a table in a file or a pipe has no edge to wrap at
    path, raw = _body(prompt_file, model)
    gateway = Gateway(config)
    try:
        with console.status("asking the engines"):
            await gateway.start()
            synced = await gateway.feed.synced(SYNC)
        request, trace, problem = await _decide(gateway, path, raw)
    finally:
        await gateway.close()
    if request is None:
        console.print(problem, style="red", markup=False)
        return 1
    _print(console, gateway, request, trace)
    if not synced:
        console.print("[yellow]some engines' event histories were not read in time: matches may be too low[/yellow]")
    if problem:
        console.print(problem, style="red", markup=False)
        return 1
    return 0


def _body(prompt_file: Path, model: str) -> tuple[str, bytes]:
    """The route and the body: a request as JSON, or a plain prompt for /v1/completions."""
    try:
        content = prompt_file.read_bytes()
    except OSError as error:
        raise ConfigError(f"--prompt-file: {prompt_file} cannot be read: {error.strerror}") from error
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        body = None
    if isinstance(body, dict) and ("messages" in body or "prompt" in body):
        body["model"] = model
        return ("/v1/chat/completions" if "messages" in body else "/v1/completions"), orjson.dumps(body)
    try:
        return "/v1/completions", orjson.dumps({"model": model, "prompt": content.decode()})
    except UnicodeDecodeError as error:
        raise ConfigError(f"--prompt-file: {prompt_file} is neither a JSON request nor UTF-8 text: {error}") from error


async def _decide(gateway: Gateway, path: str, raw: bytes) -> tuple[Request | None, Trace, str]:
    trace = Trace()
    try:
        call = parse(ROUTES[path], raw, "application/json", gateway.config.pass_through)
        arrived = gateway.clock.monotonic()
        serving, request = identify(call, gateway.directory, request_id="explain", arrived=arrived, headers={})
    except GatewayError as error:
        return None, trace, error.message
    keys = tokenized(serving, request, await serving.tokens.tokenize(call.input))
    endpoints = gateway.directory.candidates(serving.model, request.adapter)
    request.matches = serving.index.match(keys, request.prompt_tokens, endpoints)
    try:
        gateway.scheduler.schedule(request, endpoints, trace)
    except GatewayError as error:
        return request, trace, error.message
    return request, trace, ""


def _print(console: Console, gateway: Gateway, request: Request, trace: Trace) -> None:
    counted = "exact" if request.exact else "estimated"
    console.print(
        f"model {request.model.name}, handler {trace.handler}: {request.prompt_tokens} prompt tokens ({counted})",
        markup=False,
    )
    for profile in trace.profiles:
        console.print(_table(profile, request))
    if trace.plan is not None:
        console.print(_verdict(trace.plan, request), style="bold green", markup=False)


def _verdict(plan: Plan, request: Request) -> str:
    if plan.prefill is not None:
        new = request.new_tokens(plan.decode)
        return (
            f"it would go to two: prefill on {plan.prefill.name}, decode on {plan.decode.name}, which would have to "
            f"compute {new} tokens; by {plan.connector}{', strictly' if plan.strict else ''}"
        )
    verdict = f"it would go to {plan.decode.name}"
    return verdict if plan.reason in ("", "single") else f"{verdict}, whole: {_why(plan, request)}"


def _why(plan: Plan, request: Request) -> str:
    """Why the handler ``prefill-decode`` did not split; another's reason as it is."""
    if plan.reason == "short":
        return f"short, the {request.new_tokens(plan.decode)} tokens that it would have to compute are too few to split"
    if plan.reason == "version":
        return (
            f"version, none of those that could prefill runs {plan.decode.engine.version or 'an unknown version'} too"
        )
    if plan.reason == "no-prefill-endpoint":
        return "no-prefill-endpoint, none that is usable pairs with it"
    return plan.reason


def _table(profile: ProfileTrace, request: Request) -> Table:
    table = Table(title=escape(f"profile {profile.name}"), title_justify="left")
    for name in ("endpoint", "role", "engine"):
        table.add_column(name)
    for name in ("expected hit", "match", "ours", "foreign", "waiting", "KV used"):
        table.add_column(name, justify="right")
    for name, weight in profile.weights.items():
        table.add_column(escape(f"{name} x {weight:g}"), justify="right")
    table.add_column("score", justify="right")
    table.add_column("result")
    scored = {entry.endpoint.slot: entry for entry in profile.scored}
    removed = {endpoint.slot: name for name, gone in profile.removed for endpoint in gone}
    picked = profile.picked[0].slot if profile.picked else None
    for endpoint in profile.candidates:
        entry = scored.get(endpoint.slot)
        terms = [f"{entry.terms[name]:.4f}" if entry else "" for name in profile.weights]
        result = "picked" if endpoint.slot == picked else ""
        if endpoint.slot in removed:
            result = f"removed by {removed[endpoint.slot]}"
        row = (*_state(endpoint, request), *terms, f"{entry.score:.4f}" if entry else "", result)
        table.add_row(*map(escape, row))
    for name, why in profile.silent.items():
        table.caption = escape(f"scorer {name} failed and counted as 0: {why}")
    return table


def _state(endpoint: Endpoint, request: Request) -> list[str]:
    match, load, metrics = request.matches[endpoint.slot], endpoint.load, endpoint.metrics
    return [
        endpoint.name,
        str(endpoint.role),
        "up" if endpoint.engine.up else endpoint.engine.down_reason,
        str(match.expected_hit),
        str(match.source),
        str(load.requests),
        f"{load.foreign_requests:.1f}",
        str(metrics.waiting) if metrics.at is not None else "?",
        f"{metrics.kv_usage:.0%}" if metrics.at is not None else "?",
    ]
