"""Examines all engines of a configuration at the same time, each with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import zmq

from gateway.app import Gateway
from gateway.commands.doctor.examine import examine, together
from gateway.commands.doctor.finding import Finding, Level, Report, Target, healthy
from gateway.commands.doctor.hashes import DEFAULT_SEED
from gateway.commands.interview import Interviews
from gateway.core.observer import NULL_OBSERVER
from gateway.framework import Clock
from gateway.kvcache.events.listener import EventListener
from gateway.kvcache.events.poller import TICK, Poller
from gateway.wiring import listener_of

AT_ONCE = 64
"""Engines that are examined at the same time; with more, this host would be the slow part."""

SEEDS = (DEFAULT_SEED, "0")
"""Seeds of block hashes: vLLM's default, and the one that its documentation recommends for shared caches."""


async def diagnose(
    gateway: Gateway, *, timeout: float, seeds: Sequence[str] = ()
) -> tuple[list[Report], dict[str, list[str]]]:
    """Return every endpoint's report, in the order of the configuration, and by model what its engines show together.

    ``gateway``: its tokenizers are loaded, its sources of endpoints asked. ``timeout``: seconds for one engine.
    """
    listener = _listening(gateway)
    config = gateway.reloading.discovering.config
    lines = config.origin.lines
    targets, reports = [], []
    for number, (model, runtime) in enumerate(zip(config.models, gateway.directory.runtimes, strict=True)):
        given = ("models", number, "kv_cache", "block_size") in lines
        for endpoint in model.endpoints:
            unit = model.kv_cache.block_size if given else None
            targets.append(Target(model, endpoint, runtime.tokens, unit, (*seeds, *SEEDS), listener))
            reports.append(Report(model.name, endpoint.label, endpoint.url))
    room = asyncio.Semaphore(AT_ONCE)
    async with Interviews(gateway.clock) as interviews:
        pairs = zip(targets, reports, strict=True)
        await asyncio.gather(*(_one(interviews, one, report, gateway.clock, room, timeout) for one, report in pairs))
    if listener is not None:
        await listener.close()
    models = {model.name: [one for one in reports if one.model == model.name] for model in config.models}
    return reports, {name: said for name, of_model in models.items() if (said := together(of_model))}


def _listening(gateway: Gateway) -> EventListener | None:
    """The listener that engines connect to. None: none is configured, or another process listens there."""
    listener = listener_of(gateway.reloading.discovering.config, NULL_OBSERVER)
    try:
        if listener is not None:
            listener.start(Poller(TICK))
        return listener
    except zmq.ZMQError:
        return None


async def _one(
    interviews: Interviews,
    target: Target,
    report: Report,
    clock: Clock,
    room: asyncio.Semaphore,
    timeout: float,
) -> None:
    async with room:
        try:
            async with asyncio.timeout(timeout):
                await examine(interviews, target, report, clock)
        except TimeoutError:
            said = f"its examination did not end within {timeout:g} s"
            remedy = "see why it is slow, or give it more --timeout"
            report.findings.append(Finding("reachable", Level.FAILED, "slow", said, remedy))
        except Exception as error:  # a defect of ours, or an answer that we did not expect: the others' reports go on
            said = f"its examination broke off: {type(error).__name__}: {error}"
            remedy = "report this as a defect of kvgate"
            report.findings.append(Finding("reachable", Level.FAILED, "broke off", said, remedy))


def as_json(reports: Sequence[Report], notes: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The output of ``--json``."""
    names = dict.fromkeys(report.model for report in reports)
    models = [
        {
            "model": name,
            "notes": list(notes.get(name, ())),
            "endpoints": [report.as_json() for report in reports if report.model == name],
        }
        for name in names
    ]
    return {"healthy": healthy(reports), "models": models}
