"""How much work a workload is, in seconds of one engine: where a search for a fleet's size begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.replay.floor import Alone
from gateway.replay.objectives import USUAL, Objectives
from simulator.virtual.machine import Machine


@dataclass(frozen=True, slots=True)
class Demand:
    """Engines that are busy all the time, on average: with computing prompts, all of whose shared parts are cached, and
    with answering, in batches as large as the objectives and the memory allow."""

    prefill: float
    decode: float

    @property
    def engines(self) -> float:
        return self.prefill + self.decode

    @property
    def prefill_share(self) -> float:
        """Of the engines: what to begin with where prompts are computed apart."""
        return self.prefill / self.engines if self.engines else 0.5


def demand(alone: Sequence[Alone], machine: Machine, objectives: Objectives) -> Demand:
    """Of at least one request; over the time in which they come (of a closed loop: as if answers took none)."""
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
    # Of requests that come at once nothing is known but that they need one engine.
    return Demand(prefill / seconds, decode / seconds) if seconds > 0 else Demand(0.0, 0.0)
