from __future__ import annotations

import pytest

from filters.utilization import Utilization
from gateway.framework.fleet import EngineMetrics
from tests.support.candidates import context, endpoint, names, request

IDLE = endpoint(0)
WAITING = endpoint(1, metrics=EngineMetrics(at=1.0, running=20, waiting=6, kv_usage=0.5))
FULL = endpoint(2, requests=3, foreign_requests=1.5, metrics=EngineMetrics(at=1.0, running=30, kv_usage=0.95))
FLEET = [IDLE, WAITING, FULL]


def kept(*fleet, **limits):
    return names(Utilization(Utilization.Parameters(**limits), context()).filter(request(), fleet or FLEET))


@pytest.mark.parametrize(
    ("limits", "stay"),
    [
        ({"waiting": 5}, ["e0", "e2"]),
        ({"waiting": 6}, ["e0", "e1", "e2"]),
        ({"running": 20}, ["e0", "e1"]),
        ({"kv": 0.9}, ["e0", "e1"]),
        ({"requests": 4}, ["e0", "e1"]),
        ({"requests": 4.5}, ["e0", "e1", "e2"]),
        ({"waiting": 5, "kv": 0.9}, ["e0"]),
    ],
)
def test_an_endpoint_stays_while_no_figure_is_above_its_limit(limits, stay) -> None:
    assert kept(**limits) == stay


def test_where_none_stays_all_do_only_with_fallback() -> None:
    assert kept(WAITING, FULL, waiting=0, running=0) == []
    assert kept(WAITING, FULL, waiting=0, running=0, fallback=True) == ["e1", "e2"]


@pytest.mark.parametrize("bad", [{}, {"fallback": True}, {"waiting": -1}, {"kv": 1.5}])
def test_parameters_have_ranges(bad) -> None:
    with pytest.raises(ValueError, match="must be"):
        Utilization.Parameters(**bad)
