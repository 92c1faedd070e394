"""Covers: gateway/flow/shed.py, gateway/flow/drain.py, gateway/flow/waiters.py.

A full queue drops whoever would be served last; who is refused is told when to come back, and not all at once.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from gateway.errors import Saturated
from gateway.flow.drain import Drain
from gateway.flow.entry import Entry, State
from gateway.flow.settings import QueueSettings
from gateway.framework import NoParameters, Tenant
from queues.fair_cost import FairCost
from tests.support.candidates import context
from tests.support.held import Held

GREEDY, LIGHT = Tenant("greedy"), Tenant("light")


def full(**bounds: int) -> Held:
    """An endpoint on which nothing more fits."""
    settings = replace(QueueSettings(max_wait=3600.0, target=3600.0, patience=3600.0), **bounds)  # type: ignore[arg-type]
    held = Held(1, order=FairCost(NoParameters(), context()), capacity=1000, settings=settings)
    held.arrive(running := held.entry(900))
    held.first_token(running)
    return held


def waits(held: Held, **of: object) -> Entry:
    held.clock.now += 1e-3
    entry = held.entry(**of)  # type: ignore[arg-type]
    assert not held.arrive(entry)
    return entry


def reason(held: Held, entry: Entry) -> str:
    error = held.refused[entry]
    assert isinstance(error, Saturated)
    return error.reason


def test_of_a_full_queue_the_last_of_the_tenant_with_most_work_goes():
    held = full(max_requests=4)
    greedy = [waits(held, tenant=GREEDY) for _ in range(3)]
    light = [waits(held, tenant=LIGHT) for _ in range(2)]
    assert list(held.refused) == [greedy[2]]
    assert reason(held, greedy[2]) == "queue-full"
    assert [entry.state for entry in (*greedy[:2], *light)] == [State.WAITING] * 4
    more = waits(held, tenant=GREEDY)  # whose own work is the most, with it
    assert reason(held, more) == "queue-full"
    assert held.queue.waiting == 4


def test_a_lower_band_goes_first_and_never_takes_a_place():
    held = full(max_requests=2)
    batch, usual = waits(held, band=-1), waits(held)
    other = waits(held)
    assert list(held.refused) == [batch]
    late_batch = waits(held, band=-1)
    assert reason(held, late_batch) == "queue-full"
    assert [entry.state for entry in (usual, other)] == [State.WAITING] * 2


def test_a_tenant_has_its_own_bound():
    held = full(per_tenant=2)
    for _ in range(2):
        waits(held, tenant=GREEDY)
    third = waits(held, tenant=GREEDY)
    assert reason(held, third) == "queue-full"
    assert waits(held, tenant=LIGHT).state is State.WAITING


def test_late_ones_go_before_those_who_are_in_time():
    held = full(per_tenant=2, max_requests=100)
    held.queue._settings = held.settings = replace(held.settings, target=1.0)
    old = [waits(held) for _ in range(2)]
    held.pass_time(1.0)
    assert all(entry.late for entry in old)
    young = waits(held)
    assert list(held.refused) == [old[1]]
    assert young.state is State.WAITING


@pytest.mark.parametrize(
    ("bounds", "of"), [({"max_tokens": 3000}, {"tokens": 3000}), ({"max_bytes": 500}, {"size": 501})]
)
def test_what_exceeds_a_bound_alone_is_refused_and_drops_nobody(bounds, of):
    held = full(**bounds)
    first = waits(held, size=10)
    assert reason(held, waits(held, **of)) == "queue-full"
    assert first.state is State.WAITING


def test_tokens_and_bytes_are_bounded_in_all():
    held = full(max_tokens=3300)
    for _ in range(3):
        waits(held, tenant=GREEDY)
    assert not held.refused
    waits(held, tenant=LIGHT)
    assert len(held.refused) == 1
    assert held.queue.lines.total.tokens <= 3300
    held = full(max_bytes=300)
    for _ in range(4):
        waits(held, tenant=GREEDY)
    assert held.queue.lines.total.size == 300


def test_what_was_refused_is_charged_for_nothing_and_leaves_nothing():
    held = full(max_requests=1)
    waits(held)
    for _ in range(50):
        waits(held)
    assert held.queue.waiting == len(held.queue._waiters._alarms) == 1


def test_the_time_to_retry_is_the_work_before_it_by_the_rate_of_what_ends():
    drain = Drain(5.0, Random(1))
    assert 4.0 <= drain.retry_after(100.0, 1.0, 0.0) <= 6.0  # nothing has ended yet
    for second in range(100):
        drain.ended += 2.0
        drain.settle(float(second))
    assert drain.rate(99.0) == pytest.approx(2.0, rel=0.1)
    seconds = [drain.retry_after(20.0, 0.5, 99.0) for _ in range(200)]
    assert 14 < min(seconds) < 17.5
    assert 22.5 < max(seconds) < 27
    assert drain.retry_after(0.001, 1.0, 99.0) == 1.0
    assert 40.0 <= drain.retry_after(1e9, 1.0, 99.0) <= 60.0
    assert drain.rate(200.0) < 0.01


def test_a_rate_is_known_soon_after_the_first_answer():
    drain = Drain(5.0, Random(1))
    for tenth in range(20):
        drain.ended += 0.3
        drain.settle(tenth / 10)
    assert drain.rate(1.9) == pytest.approx(3.0, rel=0.2)
