"""``simulator.engine.Engine``, stepped one by one through the same requests: the measure of the one in virtual time."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from simulator.blocks import HashChain, Removed, Stored
from simulator.engine import Engine
from simulator.job import Job
from simulator.settings import EngineSettings
from simulator.virtual.machine import Machine


@dataclass
class Ask:
    """A request: a prompt and what is generated, as tokens."""

    at: float
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass
class Served:
    began: float
    first: float
    ended: float
    hit: int
    preemptions: int


@dataclass
class Run:
    """``held``: names of all that was remembered in the end, and ``said``: of all that was stored and removed, with
    the time."""

    served: list[Served]
    busy: float
    queries: int
    hits: int
    held: set[object] = field(default_factory=set)
    said: list[tuple[float, str, object]] = field(default_factory=list)


def settings(machine: Machine, block_size: int) -> EngineSettings:
    return EngineSettings(
        block_size=block_size,
        num_blocks=machine.kv_tokens // block_size + 1,
        max_model_len=10**9,
        max_num_seqs=machine.max_num_seqs,
        max_batched_tokens=machine.max_batched_tokens,
        step_seconds=machine.step,
        step_request_seconds=machine.step_request,
        kv_token_seconds=machine.kv_token,
        prefill_token_seconds=machine.prefill_token,
        prefill_context_seconds=machine.prefill_quadratic,
        connector="none",
    )


def names(ask: Ask, block_size: int) -> list[bytes]:
    chain = HashChain(block_size)
    chain.extend(array("I", ask.prompt + ask.answer))
    return chain.names


def step_through(machine: Machine, block_size: int, asks: Sequence[Ask]) -> Run:
    """``asks``: by the time they come."""
    engine = Engine(settings(machine, block_size))
    jobs = [
        Job(
            id=str(number),
            tokens=array("I", ask.prompt),
            max_tokens=len(ask.answer),
            sampler=itertools.chain(ask.answer, itertools.repeat(0)),
            chain=HashChain(block_size),
            arrived=ask.at,
        )
        for number, ask in enumerate(asks)
    ]
    run = Run([], 0.0, 0, 0)
    ended: dict[Job, float] = {}
    coming = list(zip(asks, jobs, strict=True))
    now = 0.0
    while len(ended) < len(jobs):
        while coming and coming[0][0].at <= now:
            engine.submit(coming.pop(0)[1])
        step = engine.begin(now)
        if step is None:
            now = coming[0][0].at
            continue
        now += step.seconds
        run.busy += step.seconds
        for output in engine.finish(step, now):
            if output.finish:
                ended[output.job] = now
        for event in engine.events():
            if isinstance(event, Stored):
                run.said += [(now, "stored", name) for name in event.hashes]
            elif isinstance(event, Removed):
                run.said.append((now, "removed", event.hash))
    run.served = [
        Served(job.scheduled_at or 0.0, job.first_token_at, ended[job], job.cached or 0, job.preemptions)
        for job in jobs
    ]
    run.queries, run.hits = int(engine.stats.prefix_queries), int(engine.stats.prefix_hits)
    run.held = set(engine.pool.held)
    return run
