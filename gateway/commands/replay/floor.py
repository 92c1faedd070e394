"""The lower bound of response times that no number of engines can beat: each request alone on an engine that has
everything cached that requests share.

More engines shorten queues and do not change a request's own steps. So the time that a request takes on an idle engine,
which holds all of its prompt that any earlier prompt had, is the least that it takes in any fleet. The sum of this work
is where the search for a fleet's size begins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.commands.replay.objectives import USUAL, Objectives
from gateway.commands.replay.statistics import quantile
from gateway.commands.replay.workload import TraceCall, Workload
from gateway.fleet.load.wanted import batch, token_seconds
from gateway.framework import Scalars
from gateway.framework.request import Slo
from simulator.virtual.machine import Machine


@dataclass(frozen=True, slots=True)
class Alone:
    """One call by itself; times in seconds. ``new``: prompt tokens that have to be computed."""

    call: TraceCall
    new: int
    ttft: float
    tpot: float

    def meets(self, slo: Slo) -> bool:
        return (slo.ttft is None or self.ttft <= slo.ttft) and (
            slo.tpot is None or self.call.output_tokens == 1 or self.tpot <= slo.tpot
        )


@dataclass(frozen=True, slots=True)
class Floor:
    """The lower bound for a class of traffic ("": all requests). ``alone``: its calls, at least one."""

    traffic: str
    objectives: Objectives
    alone: Sequence[Alone]

    @property
    def share(self) -> float:
        """The share of requests that can meet their objectives at all."""
        return sum(one.meets(self.objectives.judged(one.call.traffic)) for one in self.alone) / len(self.alone)

    def ttft(self, q: float) -> float:
        """The ``q`` quantile of time to first token."""
        return quantile(sorted(one.ttft for one in self.alone), q)

    def tpot(self, q: float) -> float:
        return quantile(sorted(one.tpot for one in self.alone), q)

    @property
    def slowest(self) -> Alone:
        return max(self.alone, key=lambda one: one.ttft)


def floors(workload: Workload, machine: Machine, objectives: Objectives) -> list[Floor]:
    """The lower bounds, by name: of all requests if objectives apply to all, and of each class that has some."""
    alone = list(_alone(workload, machine))
    found = [] if objectives.every is None else [Floor("", objectives, alone)]
    names = sorted(name for name in {one.call.traffic for one in alone} if name and objectives.asked(name))
    return found + [Floor(name, objectives, [one for one in alone if one.call.traffic == name]) for name in names]


def seconds(machine: Machine, tokens: int, new: int) -> float:
    """The shortest time to the first token of a prompt of ``tokens`` tokens, ``new`` of which are computed: attention,
    chunks, and the steps in which weights are read meanwhile."""
    compute = new * (machine.prefill_token + machine.prefill_quadratic * (tokens - new / 2))
    steps = math.ceil(new / machine.max_batched_tokens)
    return max(compute + steps * (machine.step - machine.weights), steps * machine.step)


def _alone(workload: Workload, machine: Machine) -> Iterator[Alone]:
    seen: set[int] = set()
    size = workload.block_size
    for call in calls(workload):
        full = call.input_tokens // size
        held = next((place for place, block in enumerate(call.blocks[:full]) if block not in seen), full)
        seen.update(call.blocks)
        # The last token is always computed: vLLM needs its logits.
        new = max(call.input_tokens - held * size, 1)
        context = call.input_tokens + call.output_tokens / 2
        yield Alone(
            call,
            new,
            seconds(machine, call.input_tokens, new),
            machine.step + machine.step_request + machine.kv_token * context,
        )


def calls(workload: Workload) -> Iterator[TraceCall]:
    """All calls of the workload, as if each were answered at once."""
    waiting = sorted(workload.start(), key=lambda call: call.at)
    while waiting:
        later: list[TraceCall] = []
        for call in waiting:
            yield call
            later += workload.answered(call, call.at)
        waiting = sorted(later, key=lambda call: call.at)


@dataclass(frozen=True, slots=True)
class Demand:
    """The average number of busy engines: those that compute prompts, if every shared prefix is cached, and those that
    decode, in batches as large as the objectives and the memory allow."""

    prefill: float
    decode: float

    @property
    def engines(self) -> float:
        return self.prefill + self.decode

    @property
    def prefill_share(self) -> float:
        """The share of engines that compute prompts, where the search begins if prompts are computed apart."""
        return self.prefill / self.engines if self.engines else 0.5


def demand(alone: Sequence[Alone], machine: Machine, objectives: Objectives) -> Demand:
    """The demand of at least one request, over the time in which the requests come. In a closed loop answers count as
    taking no time."""
    duration = max(one.call.at for one in alone) - min(one.call.at for one in alone)
    prefill = decode = 0.0
    scalars = Scalars(
        *(machine.prefill_token, machine.prefill_quadratic, machine.step, machine.step_request, machine.kv_token),
        *(0.0, machine.fetch_token, 0.0, machine.max_batched_tokens),
    )
    for one in alone:
        prefill += one.ttft
        context = one.call.input_tokens + one.call.output_tokens / 2
        asked = objectives.judged(one.call.traffic).tpot or USUAL.tpot or 0.05
        size = batch(scalars, context, asked, machine.kv_tokens, machine.max_num_seqs)
        decode += one.call.output_tokens * token_seconds(scalars, context, size)
    # If all requests come at once, nothing is known but that they need one engine.
    return Demand(prefill / duration, decode / duration) if duration > 0 else Demand(0.0, 0.0)
