"""A worker's seat, from its parent's environment."""

from __future__ import annotations

import pytest

from gateway.sharing.seat import VARIABLE, OtherVersion, Seat

SEAT = Seat(1, 4, "/run/kvgate", loads_fd=5, limits_fd=6)


def test_a_seat_goes_through_the_environment() -> None:
    assert Seat.from_environment(SEAT.to_environment()) == SEAT
    assert SEAT.descriptors == (5, 6)


def test_a_parent_of_another_version_is_told_from_a_wrong_seat() -> None:
    seat = Seat(0, 1, "/d", version="1.0")
    assert Seat.from_environment(seat.to_environment(), "1.0") == seat
    for text in (*seat.to_environment().values(), '{"version": "1.0", "of a later one": 1}'):
        with pytest.raises(OtherVersion, match=r"this is kvgate 1\.1, and its parent is kvgate 1\.0"):
            Seat.from_environment({VARIABLE: text}, "1.1")


def test_without_the_variable_there_is_none() -> None:
    assert Seat.from_environment({}) is None
    assert Seat.from_environment({VARIABLE: ""}) is None


def test_descriptors_may_be_left_out() -> None:
    text = '{"number": 0, "count": 1, "directory": "/d"}'
    assert Seat.from_environment({VARIABLE: text}) == Seat(0, 1, "/d", -1, -1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "KVGATE_SEAT is not a worker's seat"),
        ("[]", "no object"),
        ('{"number": 0, "count": 1}', "no object"),
        ('{"number": 0, "count": 1, "directory": "/d", "other": 1}', "no object"),
        ('{"number": 2, "count": 2, "directory": "/d"}', "counted from 0"),
        ('{"number": -1, "count": 2, "directory": "/d"}', "counted from 0"),
        ('{"number": 0, "count": 0, "directory": "/d"}', "1 to 256"),
        ('{"number": 0, "count": 257, "directory": "/d"}', "1 to 256"),
        ('{"number": true, "count": 2, "directory": "/d"}', "whole numbers"),
        ('{"number": "0", "count": 2, "directory": "/d"}', "whole numbers"),
        ('{"number": 0, "count": 2, "directory": "d"}', "absolute"),
        ('{"number": 0, "count": 2, "directory": 1}', "absolute"),
        ('{"number": 0, "count": 2, "directory": "/d", "loads_fd": -2}', "-1 or more"),
    ],
)
def test_what_is_no_seat_is_refused_and_says_why(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Seat.from_environment({VARIABLE: text})
