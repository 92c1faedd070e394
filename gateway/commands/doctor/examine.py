"""Examines one endpoint: makes each check in order, and judges the answers.

No check raises; what cannot be asked is a finding. An engine that sleeps, or has no room for the probe, gets none.
Every request has a time limit, and ``diagnose`` limits the whole.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from gateway.commands.doctor.caches import CacheCheck
from gateway.commands.doctor.finding import Finding, Level, Report, Target
from gateway.commands.doctor.tokens import compare
from gateway.commands.interview import EngineReport, Interview, Interviews, ask
from gateway.config.settings import ModelSettings
from gateway.fleet.engine_client import ProbeFailed
from gateway.fleet.kv_source import rank_keys
from gateway.fleet.scrape import Scrape, read
from gateway.fleet.settings import EndpointSettings
from gateway.framework import Clock
from gateway.framework.fleet import ServedModel

MAX_RANKS = 16
"""Data-parallel ranks of an engine that are probed at most: each costs a completion."""

REMEDIES = {
    "refused": "start it, or correct its url: nothing listens there",
    "connect": "let this host reach it: a firewall, a network policy, a wrong address",
    "dns": "correct the host name of its url",
    "tls": "correct its certificate, the endpoint's tls, or the scheme of its url",
    "timeout": "see why it does not answer: overload, or a process that is stopped",
    "status-401": "give the endpoint the engine's --api-key as api_key",
}

_CACHING = re.compile(rb'^vllm:cache_config_info\{.*enable_prefix_caching="(\w+)"', re.MULTILINE)
_ALGORITHM = re.compile(rb'^vllm:cache_config_info\{.*prefix_caching_hash_algo="(\w+)"', re.MULTILINE)


async def examine(interviews: Interviews, target: Target, report: Report, clock: Clock) -> None:
    """Examine the endpoint, and add the findings to ``report``."""
    add = report.findings.append
    engine_report = await ask(interviews, target.model, target.endpoint, probe=False)
    if engine_report.unreachable:
        remedy = REMEDIES.get(engine_report.unreachable, "see its log")
        said = f"it cannot be reached: {engine_report.why}"
        add(Finding("reachable", Level.FAILED, engine_report.unreachable, said, remedy))
        return
    scrape = read(engine_report.metrics) if engine_report.metrics is not None else None
    add(_of_reachable(engine_report, scrape))
    engine = interviews.of_endpoint(target.endpoint)
    served, finding = await _of_model(engine, target.model)
    add(finding)
    add(_of_transfer(target.endpoint, engine_report))
    if served is None or (scrape is not None and scrape.asleep):
        return
    add(await compare(engine, served.id, served.root, target.tokens, target.model.tokenizer))
    if (caching := _CACHING.search(engine_report.metrics or b"")) and caching[1] == b"False":
        said = "its prefix caching is off: it keeps no KV for later prompts, and announces none"
        add(Finding("events", Level.FAILED, "no caching", said, "start it with --enable-prefix-caching"))
        return
    await _of_caches(engine, target, served, engine_report, scrape, report, clock)


async def _of_caches(
    engine: Interview,
    target: Target,
    served: ServedModel,
    engine_report: EngineReport,
    scrape: Scrape | None,
    report: Report,
    clock: Clock,
) -> None:
    try:
        sources = await engine.kv_sources()
    except ProbeFailed:
        sources = None
    sizes = [each.block_size for each in scrape.engines.values()] if scrape is not None else []
    algorithm = _ALGORITHM.search(engine_report.metrics or b"")
    count = target.endpoint.ranks or len(rank_keys(sources or {})) or len(sizes) or 1
    ranks: list[int | None] = [None] if count == 1 else list(range(min(count, MAX_RANKS)))
    checks = [
        CacheCheck(
            target=target,
            engine=engine,
            served=served,
            sources=sources,
            rank=rank,
            reported=sizes[min(rank or 0, len(sizes) - 1)] if sizes else 0,
            algorithm=algorithm[1].decode() if algorithm else None,
            clock=clock,
        )
        for rank in ranks
    ]
    for found in await asyncio.gather(*(check.run() for check in checks)):
        report.findings += found
    if count > MAX_RANKS:
        report.findings.append(Finding("events", Level.NOTE, "", f"of its {count} ranks {MAX_RANKS} were probed"))


def _of_reachable(engine_report: EngineReport, scrape: Scrape | None) -> Finding:
    short = engine_report.version or "?"
    if scrape is None:
        said = "its metrics cannot be read: its load, its block size and its KV capacity are not known"
        remedy = "let GET /metrics through to it; SGLang needs --enable-metrics"
        return Finding("reachable", Level.WARNING, short, said, remedy)
    if scrape.asleep:
        return Finding("reachable", Level.FAILED, "asleep", "it is asleep", "POST /wake_up to it")
    if engine_report.version is None:
        return Finding("reachable", Level.NOTE, short, "it reports no version")
    return Finding("reachable", Level.OK, short)


async def _of_model(engine: Interview, model: ModelSettings) -> tuple[ServedModel | None, Finding]:
    """The model as the engine serves it. None: it does not serve it, and a finding says why."""
    try:
        served = await engine.models()
    except ProbeFailed as failure:
        remedy = REMEDIES.get(failure.reason, "see its log")
        return None, Finding("model", Level.FAILED, failure.reason, f"GET /v1/models gave {failure.reason}", remedy)
    name = model.served_name or await engine.served_name(model.name)
    found = served.get(name)
    if found is not None:
        return found, Finding("model", Level.OK, name)
    said = f"it does not serve {name!r}, but {', '.join(served) or 'nothing'}"
    remedy = "correct served_name, or the endpoint's url: it may be another model's engine"
    return None, Finding("model", Level.FAILED, "missing", said, remedy)


def _of_transfer(endpoint: EndpointSettings, engine_report: EngineReport) -> Finding:
    connector, kv_role = engine_report.transfer.get("kv_connector"), engine_report.transfer.get("kv_role")
    short = f"{endpoint.role}, {connector or ('none' if engine_report.configured else '?')}"
    fits = {"kv_producer": "prefill", "kv_consumer": "decode"}
    if (wanted := fits.get(str(kv_role), endpoint.role)) != endpoint.role:
        said = f"its kv_role is {kv_role}, and its role here {endpoint.role}"
        level = Level.WARNING if endpoint.role == "both" else Level.FAILED
        return Finding("transfer", level, short, said, f"give it the role {wanted}, or start it with kv_both")
    if endpoint.role != "both" and engine_report.configured and connector is None:
        said = f"its role here is {endpoint.role}, and it has no KV connector: nothing can be handed over"
        remedy = "start it with a --kv-transfer-config, or give it the role both; kvgate check says more"
        return Finding("transfer", Level.FAILED, short, said, remedy)
    return Finding("transfer", Level.OK, short)


def together(reports: Sequence[Report]) -> list[str]:
    """Findings that only a comparison of a model's engines shows."""
    said = []
    versions: dict[str, str] = {}
    sizes: dict[int, str] = {}
    for report in reports:
        if (found := report.of("reachable")) and found.level < Level.FAILED and found.short[:1].isdigit():
            versions.setdefault(found.short, report.endpoint)
        if (found := report.of("block size")) and found.short.isdigit():
            sizes.setdefault(int(found.short), report.endpoint)
    if len(versions) > 1:
        named = ", ".join(f"{version} ({name})" for version, name in versions.items())
        said.append(f"its engines run several versions: {named}; templates may differ, and KV is not handed over")
    smallest = min(sizes, default=1)
    if any(size % smallest for size in sizes):
        named = ", ".join(f"{size} ({name})" for size, name in sizes.items())
        said.append(f"its engines' blocks are no multiples of each other: {named}; start them with one --block-size")
    return said
