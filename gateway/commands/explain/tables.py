"""Decisions (``placement.decision.Decision.to_json``) as tables, each with a verdict in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gateway.commands.narrow import as_many_as_fit

Account = Mapping[str, Any]
Column = tuple[str, Callable[[Any], str]]


def show_account(console: Console, account: Account) -> None:
    """Print where a request would go now."""
    counted = "exact" if account["exact"] else "estimated"
    _say(
        console,
        f"model {account['model']}, handler {account['handler']}: {account['prompt_tokens']} prompt tokens ({counted})",
    )
    if not account["exact"] or account["tokens"] != "exact":
        why = f"this prompt is estimated: {account['estimated']}; " if account["estimated"] else ""
        _say(console, f"{why}the model's tokens: {account['tokens']}")
    if account["endpoints"]:
        _print(console, "endpoints", ENDPOINT, account["endpoints"])
    for profile in account["profiles"]:
        _show_profile(console, profile)
    for one in account["left_out"]:
        _say(console, f"left out: {one['endpoint']} {one['why']}")
    if account["plan"] is not None:
        _say(console, _verdict(account["plan"], account), "bold green")
        if compared := _compared(account["plan"]):
            _say(console, compared)
    if account["error"] is not None:
        downs = {one["engine"]["down_reason"] for one in account["endpoints"] if not one["engine"]["up"]}
        why = f" (engines are down: {', '.join(sorted(downs))})" if downs else ""
        _say(console, account["error"]["message"] + why, "red")


def show_decision(console: Console, decision: Account) -> None:
    """Print where one attempt of a request went, and its outcome."""
    counted = "exact" if decision["exact"] else "estimated"
    at = datetime.fromtimestamp(decision["at"]).astimezone().isoformat(sep=" ", timespec="milliseconds")
    _say(
        console,
        f"request {decision['request_id']}, attempt {decision['attempt']}, {at}: model {decision['model']}, handler "
        f"{decision['handler']}, {decision['prompt_tokens']} prompt tokens ({counted}); decided in "
        f"{decision['seconds'] * 1e6:.0f} us",
    )
    for profile in decision["profiles"]:
        _show_profile(console, profile)
    if decision["error"] is not None:
        _say(console, f"not placed: {decision['error']}", "red")
    if (plan := decision["plan"]) is not None:
        _say(console, f"it went to {_to(plan)}", "bold green")
        if compared := _compared(plan):
            _say(console, compared)
    if (predicted := decision["predicted"]) is not None:
        real, outcome = decision["real"], decision["outcome"] or {}
        ttft = outcome.get("prefill_time") if plan and plan["prefill"] and not outcome.get("fallback") else real["ttft"]
        console.print(
            _table(
                f"on {predicted['endpoint']}",
                [(name, itemgetter(place)) for place, name in enumerate(("", "predicted", "real"))],
                (
                    ("cached tokens", _count(predicted["cached_tokens"]), _count(real["cached_tokens"])),
                    ("time to first token", _seconds(predicted["ttft"]), _seconds(ttft)),
                    ("prefill tokens queued ahead", _count(predicted["prefill_tokens_ahead"]), ""),
                    ("requests beside", f"{predicted['requests_beside']:.1f}", ""),
                    ("KV tokens beside", f"{predicted['kv_tokens_beside']:.0f}", ""),
                ),
            )
        )
    _say(console, _ending(decision))


def _ending(decision: Account) -> str:
    outcome = decision["outcome"]
    if outcome is None:
        return f"attempt ended: {decision['result']}" if decision["result"] else "it is under way"
    took = f"{outcome['outcome']}, status {outcome['status']}, {outcome['duration']:.3f} s in all"
    fallback = f"; the decode endpoint computed the prompt: {outcome['fallback']}" if outcome["fallback"] else ""
    return f"the request ended: {took}{fallback}"


def _compared(plan: Account) -> str:
    """The costs that the handler compared, in seconds."""
    costs = plan.get("costs", {})
    return f"compared: {', '.join(f'{what} {seconds:.4f} s' for what, seconds in costs.items())}" if costs else ""


def _verdict(plan: Account, account: Account) -> str:
    if (count := len(_legs(plan))) > 1:
        how = f"; by {plan['connector']}" if "connector" in plan else ""
        return (
            f"it would go to {'two' if count == 2 else count}: {_to(plan)}, which would have to compute "
            f"{plan['new_tokens']} tokens{how}{', strictly' if plan.get('strict') else ''}"
        )
    verdict = f"it would go to {plan['decode']}"
    return verdict if plan["reason"] in ("", "single") else f"{verdict}, whole: {_why(plan, account)}"


def _legs(plan: Account) -> list[tuple[str, str]]:
    """Kind and endpoint of each leg; the last one decodes."""
    prefill = [("prefill", plan["prefill"])] if plan["prefill"] is not None else []
    return [*plan.get("others", {}).items(), *prefill, ("decode", plan["decode"])]


def _to(plan: Account) -> str:
    if len(legs := _legs(plan)) > 1:
        return ", ".join(f"{kind} on {endpoint}" for kind, endpoint in legs)
    return plan["decode"] if plan["reason"] in ("", "single") else f"{plan['decode']}, whole: {plan['reason']}"


def _why(plan: Account, account: Account) -> str:
    """Why the handler ``prefill-decode`` did not split; the reason of another handler is returned unchanged."""
    if plan["reason"] == "cheaper-whole":
        return "cheaper-whole, alone it costs less than with a prefill anywhere else"
    if plan["reason"] == "short":
        return f"short, the {plan['new_tokens']} tokens that it would have to compute are too few to split"
    if plan["reason"] == "version":
        versions = {one["endpoint"]: one["engine"]["version"] for one in account["endpoints"]}
        runs = versions.get(plan["decode"]) or "an unknown version"
        return f"version, none of those that could prefill runs {runs} too"
    if plan["reason"] == "no-prefill-endpoint":
        return "no-prefill-endpoint, none that is usable pairs with it"
    return str(plan["reason"])


def _show_profile(console: Console, profile: Account) -> None:
    candidates = profile["candidates"]
    columns: list[Column] = [
        ("endpoint", lambda one: one["endpoint"]),
        ("expected hit", lambda one: _count(one["expected_hit"])),
        ("match", lambda one: one["match"]["source"]),
    ]
    for scorer, weight in profile["scorers"].items():
        columns.append(_scored(scorer, weight))
        terms = dict.fromkeys(term for one in candidates for term in one.get("terms", {}).get(scorer, {}))
        columns.extend(_made_of(scorer, term) for term in terms)
    columns.append(("score", lambda one: _score(one.get("score"))))
    columns.append(("result", lambda one: _result(one, profile["picked"])))
    _print(console, f"profile {profile['profile']}", columns, candidates)
    for name, why in profile["failed_scorers"].items():
        _say(console, f"scorer {name} failed and counted as 0: {why}")


def _scored(scorer: str, weight: float) -> Column:
    return f"{scorer} x {weight:g}", lambda one: _score(one.get("scores", {}).get(scorer))


def _made_of(scorer: str, term: str) -> Column:
    return term, lambda one: _term(one.get("terms", {}).get(scorer, {}).get(term))


def _result(one: Account, picked: str | None) -> str:
    if "removed_by" in one:
        return f"removed by {one['removed_by']}"
    return "picked" if one["endpoint"] == picked else ""


def _print(console: Console, title: str, columns: Sequence[Column], rows: Sequence[Any]) -> None:
    """A row for each of ``rows``, which are endpoints; on a terminal that is too narrow for that, a column for each."""
    names = [name for name, _ in columns]

    def turned(some: Sequence[Sequence[str]]) -> Table:
        table = Table(title=escape(title), title_justify="left", show_header=False)
        for cells in zip(names, *some, strict=True):
            table.add_row(*map(escape, cells))
        return table

    wide = _table(title, columns, rows)
    for table in as_many_as_fit(console, wide, turned, [[show(row) for _, show in columns] for row in rows]):
        console.print(table)


def _table(title: str, columns: Sequence[Column], rows: Sequence[Any]) -> Table:
    table = Table(title=escape(title), title_justify="left")
    for number, (name, _) in enumerate(columns):
        table.add_column(escape(name), justify="right" if number and name not in LEFT else "left")
    for row in rows:
        table.add_row(*(escape(show(row)) for _, show in columns))
    return table


def _tiers(one: Account) -> str:
    """The matching tokens by tier, if some are not on the GPU."""
    match = one["match"]
    below = {tier: match[tier] for tier in ("cpu", "storage") if match[tier]}
    return " + ".join(f"{tier} {tokens}" for tier, tokens in ({"gpu": match["gpu"]} | below).items()) if below else ""


def _events(one: Account) -> str:
    """The state of the engine's event stream, and whether the match rests on it."""
    match = one["match"]
    age = "" if match["event_age"] is None else f", {match['event_age']:.1f} s"
    return f"{match['event_stream']}{age}" if match["believed"] == "events" else f"{match['event_stream']}, estimate"


def _engine(one: Account) -> str:
    up = "up" if one["engine"]["up"] else one["engine"]["down_reason"] or "down"
    return f"{up}, warming" if one["warmth"] < 1 else up


def _scraped(one: Account, text: str) -> str:
    return "?" if one["scrape"]["age"] is None else text


LEFT = ("role", "engine", "match", "tiers", "events", "result")
ENDPOINT: Sequence[Column] = (
    ("endpoint", lambda one: one["endpoint"]),
    ("role", lambda one: one["role"]),
    ("engine", _engine),
    ("expected hit", lambda one: _count(one["expected_hit"])),
    ("match", lambda one: one["match"]["source"]),
    ("tiers", _tiers),
    ("events", _events),
    ("to compute", lambda one: _count(one["new_tokens"])),
    ("ours", lambda one: _count(one["ledger"]["requests"])),
    ("queued", lambda one: _count(one["ledger"]["prefill_tokens"])),
    ("KV", lambda one: _count(one["ledger"]["kv_tokens"])),
    ("foreign", lambda one: f"{one['ledger']['foreign_requests']:.1f}"),
    ("foreign KV", lambda one: f"{one['ledger']['foreign_kv_tokens']:.0f}"),
    ("waiting", lambda one: _scraped(one, str(one["scrape"]["waiting"]))),
    ("KV used", lambda one: _scraped(one, f"{one['scrape']['kv_usage']:.0%}")),
    ("TTFT", lambda one: _seconds(one["cost"]["ttft"])),
    ("a step", lambda one: _seconds(one["cost"]["step"])),
    ("prefill x", lambda one: f"{one['cost']['prefill_scale']:.2f}"),
    ("step x", lambda one: f"{one['cost']['step_scale']:.2f}"),
    ("overhead", lambda one: _seconds(one["cost"]["scalars"]["overhead"])),
)
"""What is known about each endpoint: the prompt's match, our ledger, foreign load, the last scrape, the cost model."""


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, markup=False, highlight=False)


def _count(value: int | None) -> str:
    return "" if value is None else str(value)


def _score(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _term(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value * 1e3:.1f} ms"
