"""Statistics of a run's records, and of differences between policies: intervals over paired seeds.

Two policies with the same seed get the same requests at the same times. So the differences of their metrics, seed by
seed, vary far less than the metrics do. Intervals are Student's, at 95 %.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from gateway.commands.replay.objectives import Objectives
from gateway.commands.replay.workload import Record, Result
from gateway.framework.request import Slo

# Of Student's t at 97.5 %, for 1, 2, ... degrees of freedom.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a run. ``scale``: factor for showing it in ``unit``. ``less``: whether less is better. ``ratio``:
    whether two values are compared by their ratio, else by their difference."""

    name: str
    title: str
    unit: str
    scale: float
    digits: int
    less: bool = True
    ratio: bool = True

    @property
    def unit_of_change(self) -> str:
        """Percent, or points of a share."""
        return "%" if self.ratio else "pp"


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("ttft_mean", "TTFT mean", "s", 1, 2),
        Metric("ttft_p50", "TTFT p50", "s", 1, 2),
        Metric("ttft_p90", "TTFT p90", "s", 1, 2),
        Metric("ttft_p99", "TTFT p99", "s", 1, 1),
        Metric("tpot_mean", "TPOT mean", "ms", 1e3, 1),
        Metric("tpot_p50", "TPOT p50", "ms", 1e3, 1),
        Metric("tpot_p90", "TPOT p90", "ms", 1e3, 1),
        Metric("tpot_p99", "TPOT p99", "ms", 1e3, 0),
        Metric("e2e_mean", "E2E mean", "s", 1, 1),
        Metric("e2e_p99", "E2E p99", "s", 1, 1),
        Metric("hit_rate", "hit rate", "%", 100, 1, less=False, ratio=False),
        Metric("goodput", "goodput", "%", 100, 1, less=False, ratio=False),
        Metric("busy_ratio", "busiest ÷ mean", "", 1, 3),
        Metric("lost", "lost", "%", 100, 2, ratio=False),
        Metric("retried", "retried", "%", 100, 2, ratio=False),
        Metric("split", "prefilled apart", "%", 100, 1, ratio=False),
    )
}


@dataclass(frozen=True, slots=True)
class Summary:
    """One run of one policy with one seed. ``values``: by the names of ``METRICS``, in seconds and shares (0..1); lost
    and retried requests if engines come and go, split ones if engines have roles. ``expected_share``: expected hits
    over true hits, which shows how well the gateway knew the caches; None without hits. ``classes``: for each class of
    traffic the number of its ``requests`` and its metrics."""

    policy: str
    seed: int
    requests: int
    seconds: float
    cpu_seconds: float
    expected_share: float | None
    values: Mapping[str, float]
    classes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """The run in a few words."""
        first, good = self.values["ttft_mean"], self.values["goodput"]
        return (
            f"{self.policy}, seed {self.seed}: {METRICS['ttft_mean'].title} {first:.2f} s, goodput {good:.1%}, "
            f"took {self.cpu_seconds:.1f} s"
        )


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its 95 % confidence interval, with infinite bounds if there is only one value. ``low`` <= ``mid`` <=
    ``high``."""

    mid: float
    low: float
    high: float


def summarise(result: Result, objectives: Objectives) -> Summary:
    """Summarise a run that answered at least one call. ``objectives``: what goodput counts."""
    records = result.records
    if not records:
        raise ValueError(f"{result.policy}: a run without records says nothing")
    hits = sum(record.hit_tokens for record in records)
    busiest, mean = max(result.busy), fmean(result.busy)
    classes: dict[str, list[Record]] = {}
    for record in records:
        if record.call.traffic:
            classes.setdefault(record.call.traffic, []).append(record)
    values = {**figures(records, objectives, len(result.lost)), "busy_ratio": busiest / mean if mean else 1.0}
    calls = len(records) + len(result.lost)
    if result.scheduled:
        values |= {"lost": len(result.lost) / calls, "retried": result.retried / calls}
    if result.apart:
        values["split"] = fmean(record.split for record in records)
    lost = Counter(call.traffic for call in result.lost)
    return Summary(
        policy=result.policy,
        seed=result.seed,
        requests=calls,
        seconds=result.seconds,
        cpu_seconds=result.cpu_seconds,
        expected_share=sum(record.expected_hit for record in records) / hits if hits else None,
        values=values,
        classes={
            name: {
                "requests": len(classes[name]) + lost[name],
                **figures(classes[name], objectives, lost[name]),
            }
            for name in sorted(classes)
        },
    )


def figures(records: Sequence[Record], objectives: Objectives, lost: int = 0) -> dict[str, float]:
    """The metrics of at least one record, by name, without those of a whole run. ``lost``: calls without a record."""
    ttft = sorted(record.ttft for record in records)
    tpot = sorted(tpot_of(record) for record in records if record.call.output_tokens > 1) or [0.0]
    e2e = sorted(record.finished for record in records)
    return {
        "ttft_mean": fmean(ttft),
        "ttft_p50": quantile(ttft, 0.5),
        "ttft_p90": quantile(ttft, 0.9),
        "ttft_p99": quantile(ttft, 0.99),
        "tpot_mean": fmean(tpot),
        "tpot_p50": quantile(tpot, 0.5),
        "tpot_p90": quantile(tpot, 0.9),
        "tpot_p99": quantile(tpot, 0.99),
        "e2e_mean": fmean(e2e),
        "e2e_p99": quantile(e2e, 0.99),
        "hit_rate": sum(record.hit_tokens for record in records) / sum(record.call.input_tokens for record in records),
        "goodput": sum(good(record, objectives.judged(record.call.traffic)) for record in records)
        / (len(records) + lost),
    }


def good(record: Record, slo: Slo) -> bool:
    """Whether a streamed answer met its objectives, as the gateway judges it."""
    after = record.call.output_tokens - 1
    return (slo.ttft is None or record.ttft <= slo.ttft) and (
        slo.tpot is None or not after or record.finished - record.ttft <= slo.tpot * after
    )


def tpot_of(record: Record) -> float:
    """Seconds for each token after the first; 0 if there is none."""
    after = record.call.output_tokens - 1
    return (record.finished - record.ttft) / after if after > 0 else 0.0


def quantile(ordered: Sequence[float], q: float) -> float:
    """The nearest-rank quantile: the smallest of the ascending values (at least one) that a fraction ``q`` does not
    exceed."""
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def interval(values: Sequence[float]) -> Interval:
    """The interval of the mean of at least one value."""
    mid = fmean(values)
    if len(values) < 2:
        return Interval(mid, -math.inf, math.inf)
    half = student(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Interval(mid, mid - half, mid + half)


def difference(metric: Metric, ours: Sequence[Summary], theirs: Sequence[Summary]) -> Interval:
    """Compare ``ours`` with ``theirs`` by the seeds that both have (at least one).

    The result is ours / theirs - 1 for a ratio metric (the geometric mean over the seeds), else ours - theirs.
    """
    base = {summary.seed: summary.values[metric.name] for summary in theirs}
    pairs = [[(one.values[metric.name], base[one.seed])] for one in ours if one.seed in base]
    if not pairs:
        raise ValueError("no seed was run with both")
    return compared(metric, pairs)


def compared(metric: Metric, seeds: Sequence[Sequence[tuple[float, float]]], sign: float = 1.0) -> Interval:
    """Compare pairs of values, at least one for each seed: the interval, over the seeds, of the mean of a seed's
    pairs. ``sign``: -1.0 turns the comparison round. The result is as that of ``difference``."""
    if not metric.ratio:
        return interval([fmean(sign * (mine - other) for mine, other in pairs) for pairs in seeds])
    if any(mine <= 0 or other <= 0 for pairs in seeds for mine, other in pairs):
        return Interval(math.nan, -math.inf, math.inf)
    found = interval([fmean(sign * math.log(mine / other) for mine, other in pairs) for pairs in seeds])
    return Interval(*(math.expm1(bound) if bound < 700 else math.inf for bound in (found.mid, found.low, found.high)))


def mean(metric: Metric, summaries: Sequence[Summary]) -> float:
    return fmean(summary.values[metric.name] for summary in summaries)


def best(metric: Metric, by_policy: Mapping[str, Sequence[Summary]]) -> str:
    """The policy with the best mean; the first of equal ones."""
    sign = 1 if metric.less else -1
    return min(by_policy, key=lambda policy: sign * mean(metric, by_policy[policy]))


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t with ``freedom`` >= 1; beyond 30 to three digits, from its expansion."""
    return _T[freedom - 1] if freedom <= len(_T) else 1.960 + 2.372 / freedom + 2.82 / freedom**2
