from __future__ import annotations

import pytest

from gateway.errors import ClientError
from gateway.proxy.serving.band import OBJECTIVE, PRIORITY, band_of
from gateway.tenants.identity import Caller
from gateway.tenants.settings import TenantSettings

CALLER = Caller.of(TenantSettings("red", band=1, bands=(-2, 3)), objectives={"batch": -1, "urgent": 9})


@pytest.mark.parametrize(
    ("headers", "priority", "band"),
    [
        ({}, 0, 1),
        ({}, 2, -1),
        ({}, -1, 2),
        ({}, 2**40, -2),
        ({}, -(2**40), 3),
        ({PRIORITY: "1"}, 0, 2),
        ({PRIORITY: " +2 "}, 0, 3),
        ({PRIORITY: "-1"}, 0, 0),
        ({PRIORITY: "-1000"}, 0, -2),
        ({PRIORITY: "0"}, 5, 1),
        ({OBJECTIVE: "batch"}, 0, -1),
        ({OBJECTIVE: "batch"}, -1, -1),
        ({OBJECTIVE: "urgent"}, 0, 3),
        ({OBJECTIVE: "unknown"}, -1, 2),
        ({OBJECTIVE: "batch", PRIORITY: "1"}, 0, 2),
    ],
    ids=str,
)
def test_the_first_that_asks_is_heard_within_the_bounds(headers, priority, band):
    assert band_of(CALLER, headers, priority) == band


@pytest.mark.parametrize("wrong", ["", "high", "1.5", "--1", "+", "1001", "٣", "1e2", "9" * 5000])
def test_what_is_no_priority_is_refused_by_the_header_s_name(wrong):
    with pytest.raises(ClientError, match=PRIORITY):
        band_of(CALLER, {PRIORITY: wrong}, 0)


def test_a_caller_without_bounds_has_its_band():
    fixed = Caller.of(TenantSettings("red", band=2))
    assert band_of(fixed, {PRIORITY: "5", OBJECTIVE: "urgent"}, -7) == 2
