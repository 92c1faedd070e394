"""What no number of engines can beat: each request alone on one, with all that it shares in the cache.

More engines shorten queues and leave a request's own steps as they are. So what a request takes on an engine that does
nothing else, and holds of its prompt all that any prompt before it had, is the least that it takes in a fleet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.framework import Slo
from gateway.replay.objectives import Objectives
from gateway.replay.statistics import quantile
from gateway.replay.workload import Call, Workload
from simulator.virtual.machine import Machine


@dataclass(frozen=True, slots=True)
class Alone:
    """One call by itself. ``new``: tokens of its prompt that are to be computed. Seconds."""

    call: Call
    new: int
    ttft: float
    tpot: float

    def meets(self, slo: Slo) -> bool:
        return (slo.ttft is None or self.ttft <= slo.ttft) and (
            slo.tpot is None or self.call.output_tokens == 1 or self.tpot <= slo.tpot
        )


@dataclass(frozen=True, slots=True)
class Floor:
    """Of a class of traffic ("": of all requests): the least that its requests take. ``alone``: at least one."""

    traffic: str
    objectives: Objectives
    alone: Sequence[Alone]

    @property
    def share(self) -> float:
        """Of the requests that can be answered within their objectives at all."""
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
    """Of all requests, where objectives are asked for all, and of each class that has some, by name."""
    alone = list(_alone(workload, machine))
    found = [] if objectives.every is None else [Floor("", objectives, alone)]
    names = sorted(name for name in {one.call.traffic for one in alone} if name and objectives.asked(name))
    return found + [Floor(name, objectives, [one for one in alone if one.call.traffic == name]) for name in names]


def seconds(machine: Machine, tokens: int, new: int) -> float:
    """The least until the first token of a prompt of ``tokens``, ``new`` of which are computed: its attention, its
    chunks, and their steps, in which weights are read while prompts are computed."""
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
        # The last token is computed whatever is held: vLLM needs its logits.
        new = max(call.input_tokens - held * size, 1)
        context = call.input_tokens + call.output_tokens / 2
        yield Alone(
            call,
            new,
            seconds(machine, call.input_tokens, new),
            machine.step + machine.step_request + machine.kv_token * context,
        )


def calls(workload: Workload) -> Iterator[Call]:
    """All calls, as if each were answered at once."""
    waiting = sorted(workload.start(), key=lambda call: call.at)
    while waiting:
        later: list[Call] = []
        for call in waiting:
            yield call
            later += workload.answered(call, call.at)
        waiting = sorted(later, key=lambda call: call.at)
