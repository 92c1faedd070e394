from __future__ import annotations

import time

from gateway.core.clock import ManualClock, SystemClock


def test_a_manual_clock_stands_still_until_it_is_set() -> None:
    clock = ManualClock(5.0, epoch=1000.0)
    assert (clock.monotonic(), clock.wall()) == (5.0, 1005.0)
    clock.now += 2.5
    assert (clock.monotonic(), clock.wall()) == (7.5, 1007.5)


def test_the_systems_clock_is_the_machines() -> None:
    before = time.monotonic(), time.time()
    read = SystemClock().monotonic(), SystemClock().wall()
    after = time.monotonic(), time.time()
    assert all(early <= now <= late for early, now, late in zip(before, read, after, strict=True))
