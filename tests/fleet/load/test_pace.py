from __future__ import annotations

import pytest

from gateway.fleet.load.others import NOTHING, Row
from gateway.fleet.load.pace import Pace, booked_between


def test_a_steady_pace_is_found_and_forgotten() -> None:
    pace = Pace()
    for step in range(1, 601):
        pace.add(1, step / 100)
    assert pace.rate == pytest.approx(100, rel=0.05)
    assert pace.at(7.0) == pytest.approx(37, rel=0.05)
    assert pace.at(5.0) == pace.rate
    pace.add(0, 30.0)
    assert pace.rate == pytest.approx(0.0, abs=1e-6)


def test_what_began_and_ended_between_two_rows_is_counted() -> None:
    assert booked_between(NOTHING, Row(requests=3)) == 3
    assert booked_between(Row(requests=3, settled=5), Row(requests=2, settled=9)) == 3
    assert booked_between(Row(requests=3, settled=5), NOTHING) == 0
