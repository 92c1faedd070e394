"""Covers: gateway/commands/convert/convert.py, scorers/queue_depth.py, scorers/active_requests.py.

The picks of converted configurations are those that llm-d's own formulas give, worked out by hand for a small fleet.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.commands.convert.convert import convert
from gateway.commands.convert.plugins_yaml import plugins_yaml
from gateway.config.build import build_scheduler
from gateway.config.load import loads
from gateway.framework import Role
from gateway.framework.fleet import EngineMetrics
from gateway.scheduling.trace import Trace
from tests.support.candidates import context, endpoint, request

DATA = Path(__file__).parents[2] / "data" / "llmd"
HEAD = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n"


def totals(text: str, asked, fleet) -> tuple[dict[str, float], str]:
    """The weighted sum of each endpoint that is left, and who is planned."""
    made = convert(text, "f.yaml", [{"name": "m", "endpoints": [{"url": "http://a:1"}]}])
    scheduler = build_scheduler(loads(plugins_yaml(made, "f.yaml"), {}), context)
    trace = Trace({})
    plan = scheduler.schedule(asked, tuple(fleet), trace)
    return {name: total for name, (total, _) in trace.runs[-1].scores().items()}, plan.decode.name


def at(slot: int, waiting: int, usage: float, running: int = 0, **more):
    metrics = EngineMetrics(at=1.0, waiting=waiting, running=running, kv_usage=usage)
    return endpoint(slot, metrics=metrics, **more)


BLEND = (DATA / "chart-default.yaml").read_text()


def test_the_blend_of_prefix_3_queue_2_and_kv_2() -> None:
    fleet = [at(0, 0, 0.5), at(1, 4, 0.25), at(2, 10, 0.0)]
    # queue: (max - q) / (max - min) = 1, 0.6, 0. kv: 1 - usage = 0.5, 0.75, 1. prefix: 0, 0.5, 0.8 of the prompt.
    sums, picked = totals(BLEND, request(1000, held={1: 500, 2: 800}), fleet)
    assert sums == pytest.approx({"e0": 2 + 1 + 0, "e1": 1.2 + 1.5 + 1.5, "e2": 0 + 2 + 2.4})
    assert picked == "e2"


def test_a_queue_s_difference_of_one_weighs_as_a_hundred() -> None:
    fleet = [at(0, 1, 0.0), at(1, 0, 0.0)]
    # 3 x 0.5 for the holder, 2 x 1 for the other: llm-d's min-max lets one waiting request beat half of the prompt.
    sums, picked = totals(BLEND, request(1000, held={0: 500}), fleet)
    assert sums == pytest.approx({"e0": 2 + 1.5, "e1": 2 + 2})
    assert picked == "e1"


def test_equal_queues_all_score_one() -> None:
    sums, picked = totals(BLEND, request(1000, held={1: 1000}), [at(0, 3, 0.2), at(1, 3, 0.4)])
    assert sums == pytest.approx({"e0": 2 + 1.6, "e1": 2 + 1.2 + 3})
    assert picked == "e1"


def test_load_aware_begins_at_a_half() -> None:
    fleet = [at(0, 0, 0.0), at(1, 64, 0.0), at(2, 200, 0.0)]
    # 0.5 x (1 - min(q, 128) / 128) = 0.5, 0.25, 0; prefix 2 x 0, 0.1, 0.2.
    text = (DATA / "epp-burst-prefix-cache-config.yaml").read_text()
    sums, picked = totals(text, request(1000, held={1: 100, 2: 200}), fleet)
    assert sums == pytest.approx({"e0": 0.5, "e1": 0.45, "e2": 0.4})
    assert picked == "e0"


def test_active_requests_have_a_gap_between_idle_and_busy() -> None:
    text = HEAD + "plugins: [{type: active-request-scorer, parameters: {idleThreshold: 1, maxBusyScore: 0.5}}]\n"
    fleet = [endpoint(slot, requests=requests) for slot, requests in enumerate((4, 1, 10))]
    # 1 for at most one request, else (max - count) / max x 0.5.
    sums, picked = totals(text, request(), fleet)
    assert sums == pytest.approx({"e0": 0.3, "e1": 1.0, "e2": 0.0})
    assert picked == "e1"


def test_sticky_until_saturated() -> None:
    text = (DATA / "sticky-until-saturated.yaml").read_text()
    asked = request(1000, held={0: 900})
    # The holder is kept while its queue takes at most 18 s longer, at 15928 tokens a second.
    assert totals(text, asked, [endpoint(0, prefill_tokens=286_000), endpoint(1)])[1] == "e0"
    sums, picked = totals(text, asked, [endpoint(0, prefill_tokens=287_000), endpoint(1)])
    assert picked == "e1"
    assert sums == pytest.approx({"e0": 1 - 287_100 / 4_194_304, "e1": 1 - 1000 / 4_194_304})


def test_roles_and_the_threshold_of_two_legs() -> None:
    text = (DATA / "pd-epp-config.yaml").read_text()
    made = convert(text, "f.yaml", [{"name": "m", "endpoints": [{"url": "http://a:1"}]}])
    scheduler = build_scheduler(loads(plugins_yaml(made, "f.yaml"), {}), context)
    fleet = (
        at(0, 0, 0.0, role=Role.PREFILL),
        at(1, 5, 0.0, role=Role.PREFILL),
        at(2, 0, 0.0, role=Role.DECODE),
        at(3, 0, 0.0, role=Role.DECODE),
    )
    plan = scheduler.schedule(request(1000, held={3: 500, 1: 1000}), fleet)
    # Decode: 2 x 0.5 + 1 against 1. Prefill: 2 x 1 + 0 against 0 + 1.
    assert (plan.decode.name, plan.prefill and plan.prefill.name) == ("e3", "e1")
    # nonCachedTokens 16: with 15 left to compute, nothing is split.
    assert scheduler.schedule(request(1000, held={3: 985}), fleet).prefill is None
    assert scheduler.schedule(request(1000, held={3: 984}), fleet).prefill is not None
