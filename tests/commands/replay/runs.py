"""Summaries with figures of one's choice, and workloads that are played to their end."""

from __future__ import annotations

from gateway.commands.replay.report import Comparison, gather
from gateway.commands.replay.statistics import METRICS, Summary
from gateway.commands.replay.workload import VLLM_BLOCK, TraceCall, Workload

BASE = {"ttft_mean": 1.5, "busy_ratio": 1.02, "goodput": 0.7, "hit_rate": 0.3}


def summary(policy: str = "default", seed: int = 1, **values: float) -> Summary:
    return Summary(policy, seed, 1000, 300.0, 2.5, 1.01, {**dict.fromkeys(METRICS, 0.04), **BASE, **values})


def comparison(name: str = "a trace, 0.45 requests/s/endpoint, 8 x 70b-tp4", seeds: int = 3) -> Comparison:
    """``default`` has 10 % less TTFT than ``llm-d`` and 5 points more goodput, give or take a little."""
    return gather(
        name,
        {"endpoints": 8},
        [
            summary(policy, seed, ttft_mean=ttft * (1 + 0.2 * seed + drift * seed), goodput=goodput + 0.02 * seed)
            for policy, ttft, goodput, drift in (("default", 0.9, 0.75, 0.0), ("llm-d", 1.0, 0.70, 0.001))
            for seed in range(1, seeds + 1)
        ],
    )


def played(workload: Workload, answer_seconds: float = 2.0) -> list[TraceCall]:
    """All calls, each answered after so many seconds."""
    calls, waiting = [], list(workload.start())
    while waiting:
        call = min(waiting, key=lambda one: one.at)
        waiting.remove(call)
        calls.append(call)
        waiting += workload.answered(call, call.at + answer_seconds)
    return calls


def assert_blocks_stand_for_one_prefix(calls: list[TraceCall]) -> None:
    """Blocks cover each prompt and answer, and behind each block there is always the same one."""
    before: dict[int, int] = {}
    for call in calls:
        assert len(call.blocks) == -(-(call.input_tokens + call.output_tokens) // VLLM_BLOCK)
        for previous, block in zip((-1, *call.blocks), call.blocks, strict=False):
            assert before.setdefault(block, previous) == previous
