"""Estimates the work in a workload, in seconds of one engine: where the search for a fleet's size begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.commands.replay.floor import Alone
from gateway.commands.replay.objectives import USUAL, Objectives
from simulator.virtual.machine import Machine


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
    seconds = max(one.call.at for one in alone) - min(one.call.at for one in alone)
    prefill = decode = 0.0
    for one in alone:
        prefill += one.ttft
        context = one.call.input_tokens + one.call.output_tokens / 2
        each = machine.step_request + machine.kv_token * context
        asked = objectives.judged(one.call.traffic).tpot or USUAL.tpot or 0.05
        room = min(machine.kv_tokens / context, machine.max_num_seqs)
        batch = max(1.0, min(room, (asked - machine.step) / each if each else room))
        decode += one.call.output_tokens * (machine.step / batch + each)
    # If all requests come at once, nothing is known but that they need one engine.
    return Demand(prefill / seconds, decode / seconds) if seconds > 0 else Demand(0.0, 0.0)
