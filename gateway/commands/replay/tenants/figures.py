"""The figures of one run with tenants: of all requests, of the light tenants, and of each tenant."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.commands.replay.objectives import Objectives
from gateway.commands.replay.statistics import Metric, good, quantile, tpot_of
from gateway.commands.replay.tenants.scenes import WARM_UP
from gateway.commands.replay.workload import Record, Result
from simulator.virtual.machine import Machine

ALL, LIGHT = "all", "light"
"""The groups of requests beside those of each tenant."""

FIGURES: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("ttft_p50", "TTFT p50", "s", 1, 2),
        Metric("ttft_p99", "TTFT p99", "s", 1, 2),
        Metric("tpot_p99", "TPOT p99", "ms", 1e3, 0),
        Metric("good", "goodput", "%", 100, 1, less=False, ratio=False),
        Metric("good_rate", "goodput /s", "", 1, 1, less=False),
        Metric("served_rate", "served /s", "", 1, 1, less=False),
        Metric("hit_rate", "cached", "%", 100, 1, less=False, ratio=False),
        Metric("refused", "shed", "%", 100, 1, ratio=False),
        Metric("engine_share", "engine time", "%", 100, 1, ratio=False),
    )
}
"""By name. ``good``: the share of a group's requests that met their objectives; one that was refused did not.
``served_rate``: answers that ended in the time of the arrivals, a second. ``engine_share``: of the engines' busy
seconds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run. ``load``: relative to the capacity; ``rate``: requests a second, for ``seconds``. ``groups``: by name,
    of each the number of its ``requests`` and the values of ``FIGURES``. ``reasons``: how many requests of each tenant
    were refused, by a short word."""

    scene: str
    way: str
    load: float
    rate: float
    seconds: float
    seed: int
    cpu_seconds: float
    groups: Mapping[str, Mapping[str, float]]
    reasons: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """The run in a few words."""
        light, whole = self.groups[LIGHT], self.groups[ALL]
        return (
            f"{self.scene}, {self.load:g} times, {self.way}, seed {self.seed}: light TTFT p50 {light['ttft_p50']:.2f} "
            f"s, p99 {light['ttft_p99']:.2f} s, goodput {light['good']:.1%}; all {whole['good_rate']:.1f}/s good, "
            f"took {self.cpu_seconds:.1f} s"
        )


def groups_of(
    result: Result, light: Collection[str], objectives: Objectives, machines: Sequence[Machine], seconds: float
) -> dict[str, dict[str, float]]:
    """The figures of a run whose requests came within ``seconds`` behind the warm-up, by group. ``light``: names of the
    light tenants. ``machines``: of each endpoint."""
    spent = engine_seconds(result.records, machines, sum(result.busy))
    whole = sum(spent.values()) or 1.0
    counted = [record for record in result.records if record.call.at >= WARM_UP]
    refused = Counter(call.tenant.name for call, _ in result.refused if call.at >= WARM_UP)
    lost = Counter(call.tenant.name for call in result.lost if call.at >= WARM_UP)
    names = sorted({record.call.tenant.name for record in counted} | set(refused) | set(lost))
    members = {ALL: frozenset(names), LIGHT: frozenset(light), **{name: frozenset({name}) for name in names}}
    found = {}
    for group, own in members.items():
        records = [record for record in counted if record.call.tenant.name in own]
        shed = sum(refused[name] for name in own)
        calls = len(records) + shed + sum(lost[name] for name in own)
        if calls:
            values = _values(records, calls, objectives, seconds)
            values |= {"refused": shed / calls, "engine_share": sum(spent.get(name, 0.0) for name in own) / whole}
            ended = (
                WARM_UP <= record.call.at + record.finished < WARM_UP + seconds
                for record in result.records
                if record.call.tenant.name in own
            )
            found[group] = values | {"served_rate": sum(ended) / seconds}
    return found


def _values(records: Sequence[Record], calls: int, objectives: Objectives, seconds: float) -> dict[str, float]:
    ttft = sorted(record.ttft for record in records) or [0.0]
    tpot = sorted(map(tpot_of, records)) or [0.0]
    met = sum(good(record, objectives.judged(record.call.traffic)) for record in records)
    prompts = sum(record.call.input_tokens for record in records)
    return {
        "requests": float(calls),
        "ttft_p50": quantile(ttft, 0.5),
        "ttft_p99": quantile(ttft, 0.99),
        "tpot_p99": quantile(tpot, 0.99),
        "good": met / calls,
        "good_rate": met / seconds,
        "hit_rate": sum(record.hit_tokens for record in records) / prompts if prompts else 0.0,
    }


def engine_seconds(records: Sequence[Record], machines: Sequence[Machine], busy: float) -> dict[str, float]:
    """What each tenant's answered requests took of the engines' ``busy`` seconds: its prompts' computing and its own
    tokens' part of steps, and of what is left (reading the weights in each step) its share of the generated tokens."""
    spent: defaultdict[str, float] = defaultdict(float)
    tokens: Counter[str] = Counter()
    for record in records:
        call, machine = record.call, machines[record.endpoint]
        new = max(1, call.input_tokens - record.hit_tokens)
        prompt = new * (machine.prefill_token + machine.prefill_quadratic * (record.hit_tokens + new / 2))
        context = call.input_tokens + call.output_tokens / 2
        steps = call.output_tokens * (machine.step_request + machine.kv_token * context)
        spent[call.tenant.name] += prompt + steps
        tokens[call.tenant.name] += call.output_tokens
    generated = sum(tokens.values())
    rest = max(0.0, busy - sum(spent.values()))
    for name, count in tokens.items():
        spent[name] += rest * count / generated
    return spent
