"""All engines of a configuration at once, each within its time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import zmq

from gateway.app import Gateway, intake_of
from gateway.doctor.examine import Patient, examine, silent, together, unexpected
from gateway.doctor.finding import Report, healthy
from gateway.doctor.hashes import DEFAULT_SEED
from gateway.framework import NULL_OBSERVER, Clock
from gateway.interview import Interviews
from gateway.kvcache.intake import Intake

AT_ONCE = 64
"""Engines that are examined at the same time: of a thousand, this host would be what is slow."""

SEEDS = (DEFAULT_SEED, "0")
"""Of block hashes: vLLM's own, and what its documents advise where caches are shared."""


async def diagnose(
    gateway: Gateway, *, timeout: float, seeds: Sequence[str] = ()
) -> tuple[list[Report], dict[str, list[str]]]:
    """Every endpoint's report, in the configuration's order, and by model what its engines together show.

    ``gateway``: its tokenizers are loaded. ``timeout``: seconds for one engine.
    """
    intake = _listening(gateway)
    lines = gateway.config.origin.lines
    patients, reports = [], []
    for number, (model, serving) in enumerate(zip(gateway.config.models, gateway.directory.servings, strict=True)):
        given = ("models", number, "kv_cache", "block_size") in lines
        for endpoint in model.endpoints:
            unit = model.kv_cache.block_size if given else None
            patients.append(Patient(model, endpoint, serving.tokens, unit, (*seeds, *SEEDS), intake))
            reports.append(Report(model.name, patients[-1].name, endpoint.url))
    room = asyncio.Semaphore(AT_ONCE)
    async with Interviews(gateway.clock) as interviews:
        pairs = zip(patients, reports, strict=True)
        await asyncio.gather(*(_one(interviews, one, report, gateway.clock, room, timeout) for one, report in pairs))
    if intake is not None:
        await intake.close()
    models = {model.name: [one for one in reports if one.model == model.name] for model in gateway.config.models}
    return reports, {name: said for name, of_model in models.items() if (said := together(of_model))}


def _listening(gateway: Gateway) -> Intake | None:
    """What engines connect to, here and now; None: nothing, or another process listens there."""
    intake = intake_of(gateway.config, NULL_OBSERVER)
    try:
        if intake is not None:
            intake.start()
        return intake
    except zmq.ZMQError:
        return None


async def _one(
    interviews: Interviews,
    patient: Patient,
    report: Report,
    clock: Clock,
    room: asyncio.Semaphore,
    timeout: float,
) -> None:
    async with room:
        try:
            async with asyncio.timeout(timeout):
                await examine(interviews, patient, report, clock)
        except TimeoutError:
            silent(report, timeout)
        except Exception as error:
            unexpected(report, error)


def as_json(reports: Sequence[Report], notes: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """What ``--json`` prints."""
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
