"""docs/examples/epp-weights.yaml: the classic blend, term by term."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.build import build_scheduler
from gateway.config.load import load
from gateway.framework.fleet import EngineMetrics
from gateway.scheduling.trace import Trace
from tests.support.candidates import context, endpoint, request

FILE = Path(__file__).parents[2] / "docs" / "examples" / "epp-weights.yaml"


def scores(asked, *endpoints):
    scheduler, trace = build_scheduler(load(FILE, {}), context), Trace({})
    plan = scheduler.schedule(asked, endpoints, trace)
    return plan, {name: score for name, (score, _) in trace.runs[0].scores().items()}


def test_the_blend_is_the_classic_one() -> None:
    busy = endpoint(
        0, requests=16, latency=0.01, kv_tokens=5000, metrics=EngineMetrics(at=1.0, kv_capacity=10_000), labels={}
    )
    idle = endpoint(1, latency=0.0, metrics=EngineMetrics(at=1.0, kv_capacity=10_000))
    plan, scored = scores(request(1000, held={0: 750}), busy, idle)
    assert scored["e0"] == pytest.approx(0.3 * 0.5 + 0.4 * 0.75 + 0.2 * 0.5 + 0.1 * 0.5)
    assert scored["e1"] == pytest.approx(0.3 + 0.4 * 0 + 0.2 + 0.1)
    assert plan.decode is busy


def test_the_engines_come_from_the_environment() -> None:
    config = load(FILE, {"ENGINE_1": "http://10.0.0.1:8000"})
    assert [one.url for one in config.models[0].endpoints] == ["http://10.0.0.1:8000", "http://127.0.0.1:8002"]
