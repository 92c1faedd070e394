"""How many engines a demand needs, so that its requests meet their objectives: a few closed formulas over the cost
model (``framework.Scalars``), which an autoscaler may follow and with which ``kvgate plan`` begins its search.

    prefill  = rate * seconds to compute a mean prompt + backlog / RECOVERY     engines busy with prompts
    each     = step_request + kv_token * context
    batch    = (tpot - step) / each, within what KV memory and the engine allow
    decode   = rate * tokens * (step / batch + each)                            engines busy with answers,
                                                                                at least running / batch

Apart, prompts need the fewest engines c with which they wait briefly enough, and answers ``decode`` and a reserve:

    wait(c)  = (1 + cv^2) / 2 * s / (c * (1 - u)) * ln(busy / LATE),  busy = u ^ (sqrt(2 c + 2) - 1),  u = prefill / c
    reserve  = SPARE * sqrt(decode / batch)

Together, c engines compute prompts for u of their time, and an answer of ``tokens`` loses to them at most

    stalled  = u + SPARE * sqrt(u * s * (1 + cv^2) / (tokens * tpot))

of its own: the batch is that of ``tpot * (1 - stalled)``, and prefill + decode + reserve must be at most c.

Sources: the roofline of a step is the cost model's own; ``wait`` is the quantile 1 - LATE of the wait in M/G/c, by
Sakasegawa's approximation of its mean and an exponential tail (Whitt, Approximations for the GI/G/m queue, 1993);
``reserve`` is that of a Poisson number of running requests, which the square root rule staffs for (Whitt, 1992);
``stalled`` is the share of an answer's time that prompts take which come at random (a compound Poisson sum).

Assumptions: requests come at random, at the rate of the last half minute; each may go to any engine, and its prefix is
found as often as lately; engines are alike; the costs are those that the gateway has fitted. What an objective asks
that no engine can do alone binds nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, inf, log, sqrt
from typing import NamedTuple

from gateway.framework import Scalars
from gateway.framework.request import Slo

RECOVERY = 30.0
"""Seconds in which engines should catch up with what waits: an engine takes about a minute to start, and what it is
started for should not last for many more."""

LATE = 0.05
"""Share of requests that may wait for longer than their objective leaves them."""

SPARE = 1.64
"""Standard deviations of the running requests that are held in reserve: 95 % of the time they have room."""

MOST_BUSY = 0.9
"""Share of their time for which engines may compute prompts where no objective bounds the wait: beyond it the wait
grows without bound."""

USUAL_STEPS = 5.0
"""Empty steps that a step may take where no objective bounds it: an engine then has 83 % of its decode throughput, as
in ``QueueSettings.step``."""

KV_SHARE = 0.9
"""Of the KV memory: beyond it vLLM begins to preempt."""

MOST_ENGINES = 10_000
"""The largest answer: a mistyped objective must not take long."""


class Demand(NamedTuple):
    """``rate``: requests a second. Of a mean one: ``new`` prompt tokens to compute, their ``attention`` (as
    ``Load.prefill_attention``), and ``output`` tokens, during which it has ``context`` tokens of KV. ``variation``: the
    squared coefficient of variation of ``new``. ``backlog``: seconds of prompts that wait. ``running``: requests that
    are in flight now: where engines are too few, more than the rate would make."""

    rate: float
    new: float
    attention: float
    output: float
    context: float
    variation: float = 1.0
    backlog: float = 0.0
    running: float = 0.0


class Wanted(NamedTuple):
    """Engines. ``prefill``, ``decode``: as many are busy with prompts and with answers, on average."""

    engines: int
    prefill: float
    decode: float


NOTHING = Wanted(0, 0.0, 0.0)


def pace(scalars: Scalars, context: float, tpot: float | None) -> float:
    """Seconds that a step may take: ``tpot``, or ``USUAL_STEPS`` where nothing is asked, or what no engine does for one
    request of ``context`` tokens alone."""
    if tpot is None or scalars.step_seconds(1, context) > tpot:
        return USUAL_STEPS * scalars.step
    return tpot


def batch(scalars: Scalars, context: float, tpot: float, kv_capacity: float, most: float = inf) -> float:
    """Requests of ``context`` tokens each that an engine can decode at once in steps of ``tpot`` seconds, at least 1.
    ``kv_capacity``: tokens; 0: not known. ``most``: as many run at once at the most."""
    each = scalars.step_request + scalars.kv_token * context
    room = min(most, kv_capacity / context if kv_capacity and context else inf)
    return max(1.0, min(room, (tpot - scalars.step) / each if each else room))


def token_seconds(scalars: Scalars, context: float, size: float) -> float:
    """Engine seconds of one token of an answer in a batch of ``size`` requests of ``context`` tokens each."""
    return scalars.step / size + scalars.step_request + scalars.kv_token * context


def wait(engines: int, busy: float, service: float, variation: float) -> float:
    """Seconds for which all but ``LATE`` of the prompts wait at most. ``busy``: engines that are, on average, fewer
    than ``engines``. ``service``: mean seconds of one."""
    used = busy / engines
    probability = used ** (sqrt(2 * engines + 2) - 1)
    if probability <= LATE:
        return 0.0
    return (1 + variation) / 2 * service / (engines * (1 - used)) * log(probability / LATE)


def wanted_for_prompts(demand: Demand, scalars: Scalars, slo: Slo) -> Wanted:
    """Engines that compute prompts for others."""
    service = _service(demand, scalars)
    busy = demand.rate * service + demand.backlog / RECOVERY
    return Wanted(_fewest(lambda count: _in_time(count, busy, service, demand, scalars, slo), busy), busy, 0.0)


def wanted_for_answers(demand: Demand, scalars: Scalars, slo: Slo, kv_capacity: float) -> Wanted:
    """Engines that answer, where others compute the prompts. ``kv_capacity``: tokens of one; 0: not known."""
    busy, size = _answers(demand, scalars, pace(scalars, demand.context, slo.tpot), kv_capacity)
    return Wanted(_ceil(busy + SPARE * sqrt(busy / size)), 0.0, busy)


def wanted_together(demand: Demand, scalars: Scalars, slo: Slo, kv_capacity: float) -> Wanted:
    """Engines that do both. ``kv_capacity``: tokens of one; 0: not known."""
    service = _service(demand, scalars)
    prefill = demand.rate * service + demand.backlog / RECOVERY
    tpot = pace(scalars, demand.context, slo.tpot)

    def answers(count: int) -> tuple[float, float]:
        used, lasts = prefill / count, max(tpot, demand.output * tpot)
        stalled = used + SPARE * sqrt(used * service * (1 + demand.variation) / lasts)
        return _answers(demand, scalars, tpot * max(0.0, 1 - stalled), kv_capacity)

    def does(count: int) -> bool:
        if not _in_time(count, prefill, service, demand, scalars, slo):
            return False
        decode, size = answers(count)
        return prefill + decode + SPARE * sqrt(decode / size) <= count

    if not prefill and not (demand.running and demand.output):
        return NOTHING
    engines = _fewest(does, max(1.0, prefill))
    return Wanted(engines, prefill, answers(engines)[0])


def _answers(demand: Demand, scalars: Scalars, tpot: float, kv_capacity: float) -> tuple[float, float]:
    """Engines that are busy with answers, and requests in the batch of one."""
    size = batch(scalars, demand.context, tpot, KV_SHARE * kv_capacity)
    flow = demand.rate * demand.output * token_seconds(scalars, demand.context, size)
    return max(flow, demand.running / size if demand.output else 0.0), size


def _service(demand: Demand, scalars: Scalars) -> float:
    return scalars.prefill_token * demand.new + scalars.prefill_quadratic * demand.attention


def _in_time(count: int, busy: float, service: float, demand: Demand, scalars: Scalars, slo: Slo) -> bool:
    """Whether prompts wait briefly enough on ``count`` engines."""
    if busy > MOST_BUSY * count:
        return False
    left = inf if slo.ttft is None else slo.ttft - service - scalars.overhead
    return left <= 0 or wait(count, busy, service, demand.variation) <= left


def _fewest(does: Callable[[int], bool], least: float) -> int:
    """The smallest number that does, from ``least`` on; 0 where that is 0. What one does, all larger ones do."""
    low = _ceil(least)
    if low == 0 or does(low):
        return low
    high = 2 * low
    while high < MOST_ENGINES and not does(high):
        low, high = high, 2 * high
    high = min(high, MOST_ENGINES)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if does(middle) else (middle, high)
    return high


def _ceil(engines: float) -> int:
    return min(MOST_ENGINES, ceil(engines))
