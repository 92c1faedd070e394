from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.config.build import build_orders, build_scheduler
from gateway.config.load import loads
from gateway.config.registry import Registry, discover
from gateway.errors import ConfigError
from gateway.framework import Plan
from tests.support.candidates import context, endpoint, request

MODELS = "models: [{name: m, endpoints: [{url: 'http://a:1'}]}]\n"


def wired(text: str = "", registry: Registry | None = None, **environ: str):
    return build_scheduler(loads(MODELS + text, environ), context, registry)


def error(text: str, registry: Registry | None = None, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        wired(text, registry, **environ)
    return caught.value.message


def with_type(made: Any, plugin_type: Any) -> Registry:
    found = discover()
    return Registry([*found.plugins.values(), *found.handlers.values(), plugin_type("scorer", "mine", made)])


MINE = """\
plugins:
- {name: best, type: max-score}
- name: one
  type: mine
  parameters: {%s}
profiles:
- {name: default, scorers: [{plugin: one}], picker: best}
"""


def test_the_defaults_are_wired_and_decide() -> None:
    scheduler = wired()
    idle, busy = endpoint(0), endpoint(1, requests=10, prefill_tokens=2000)
    assert scheduler.schedule(request(), (busy, idle)) == Plan.of(idle, reason="single")
    assert scheduler.schedule(request(10_000, held={1: 9_900}), (busy, idle)).decode is busy


def test_one_type_may_be_used_twice_with_different_parameters() -> None:
    scheduler = wired(
        """\
plugins:
- {name: zone-a, type: labels, parameters: {match: {zone: a}}}
- {name: zone-b, type: labels, parameters: {match: {zone: [b, c]}, prefer: true}}
- {name: best, type: max-score}
profiles:
- {name: default, filters: [zone-b, zone-a], picker: best}
"""
    )
    here, there = endpoint(0, labels={"zone": "a"}), endpoint(1, labels={"zone": "d"})
    assert scheduler.schedule(request(), (there, here)).decode is here


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "plugins:\n- name: best\n  type: max-scor\nprofiles: [{name: default, picker: best}]\n",
            "plugins.yaml:4: plugins[0].type: no plugin 'max-scor' is installed; did you mean 'max-score'? Allowed: ",
        ),
        (
            "handlers:\n- name: default\n  type: singel\n",
            "plugins.yaml:4: handlers[0].type: no plugin 'singel' is installed; did you mean 'single'? "
            "Allowed: header-profile, prefill-decode, single",
        ),
        (
            "plugins:\n- name: best\n  type: max-score\n  parameters:\n    x: 1\n"
            "profiles: [{name: default, picker: best}]\n",
            "plugins.yaml:6: plugins[0].parameters.x: unknown key; there are none",
        ),
        (
            "plugins:\n- name: best\n  type: placement-cost\n  parameters:\n    lambda: 1\n"
            "profiles: [{name: default, picker: best}]\n",
            "plugins.yaml:6: plugins[0].parameters.lambda: unknown key; did you mean 'lam'? "
            "Allowed: lam, reuse, second",
        ),
        (
            "plugins:\n- name: best\n  type: placement-cost\n  parameters:\n    lam: high\n"
            "profiles: [{name: default, picker: best}]\n",
            "plugins.yaml:6: plugins[0].parameters.lam: expected a number, found the string 'high'",
        ),
        (
            "plugins:\n- name: best\n  type: placement-cost\n  parameters:\n    second: 0\n"
            "profiles: [{name: default, picker: best}]\n",
            "plugins.yaml:6: plugins[0].parameters: second must be above 0 seconds",
        ),
        (
            "handlers:\n- name: default\n  type: header-profile\n",
            "plugins.yaml:3: handlers[0].parameters.profiles: this key is required",
        ),
        (
            "profiles:\n- name: default\n  picker: best\n  filters: [cost]\n",
            "plugins.yaml:5: profiles[0].filters[0]: 'cost' is a scorer, not a filter. Allowed: healthy, role",
        ),
        (
            "profiles:\n- name: default\n  picker: cost\n",
            "plugins.yaml:4: profiles[0].picker: 'cost' is a scorer, not a picker. Allowed: best",
        ),
        (
            "profiles:\n- name: default\n  picker: best\n  scorers: [{plugin: best}]\n",
            "plugins.yaml:5: profiles[0].scorers[0].plugin: 'best' is a picker, not a scorer. Allowed: cost",
        ),
        (
            "profiles:\n- name: fast\n  picker: best\n",
            "plugins.yaml:2: profiles: the default handlers need the profile 'default', which the file's own profiles "
            "lack; give 'handlers' too",
        ),
        (
            "handlers:\n- name: default\n  type: prefill-decode\n  parameters: {connector: nxil}\n",
            "plugins.yaml:5: handlers[0].parameters.connector: the string 'nxil' is not one of these; "
            "did you mean 'nixl'? Allowed: mooncake, nixl, sglang, shared-storage",
        ),
        (
            "handlers:\n- name: default\n  type: prefill-decode\n  parameters: {threshold: -1}\n",
            "plugins.yaml:5: handlers[0].parameters: threshold must be at least 0 tokens",
        ),
        (
            "handlers:\n- name: default\n  type: prefill-decode\n  parameters: {prefill: prefil}\n",
            "plugins.yaml:5: handlers[0].parameters: there is no profile 'prefil'; did you mean 'prefill'?",
        ),
        (
            "handlers:\n- name: default\n  type: single\n  parameters:\n    profile: defualt\n",
            "plugins.yaml:5: handlers[0].parameters: there is no profile 'defualt'; did you mean 'default'?",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text, message) -> None:
    assert message in error(text)


@dataclass(frozen=True)
class MineParameters:
    count: int = 1
    key: str = ""
    table: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        if self.count == 13:
            raise TypeError(f"unlucky with {self.key}")


class Mine:
    Parameters = MineParameters

    def __init__(self, parameters: MineParameters, context: Any) -> None:
        self.parameters, self.name = parameters, context.name
        if parameters.count == 7:
            raise RuntimeError(f"no luck with {parameters.key}")

    def score(self, request, endpoints):
        return [1.0] * len(endpoints)


class Slow(Mine):
    async def score(self, request, endpoints):
        return []


def test_a_plugin_gets_its_typed_parameters_and_its_instances_name(plugin_type) -> None:
    scheduler = wired(MINE % "count: '${N}', table: {a: 1}", with_type(Mine, plugin_type), N="3")
    ((name, plugin, weight),) = scheduler.profiles["default"].scorers
    assert (name, plugin.name, weight) == ("one", "one", 1.0)
    assert plugin.parameters == MineParameters(count=3, table={"a": 1})


@pytest.mark.parametrize(
    ("parameters", "made", "message"),
    [
        (
            "",
            Slow,
            "plugins.yaml:5: plugins[1].type: the scorer 'mine' (made:Slow, from maker 1.0): 'score' must not be",
        ),
        ("", 42, "plugins.yaml:5: plugins[1].type: the scorer 'mine' (made:thing, from maker 1.0) is no class"),
        ("", ImportError("no torch"), "(made:thing, from maker 1.0) cannot be imported: ImportError: no torch"),
        (
            "count: 7, key: '${KEY}'",
            Mine,
            "plugins.yaml:4: plugins[1]: the scorer 'mine' (made:Mine, from maker 1.0) cannot be constructed: "
            "RuntimeError: no luck with ${KEY}",
        ),
        (
            "count: 13, key: '${KEY}'",
            Mine,
            "plugins.yaml:6: plugins[1].parameters: the scorer 'mine' (made:Mine, from maker 1.0) cannot take its "
            "parameters: TypeError: unlucky with ${KEY}",
        ),
    ],
)
def test_a_plugin_that_is_at_fault_is_named_with_its_distribution(parameters, made, message, plugin_type) -> None:
    assert message in error(MINE % parameters, with_type(made, plugin_type), KEY="sk-secret")


def test_instances_go_on_where_they_are_the_same() -> None:
    """What they remember stays; a weight or a filter beside them is no other instance."""
    text = (
        "plugins: [{name: turn, type: round-robin}, {name: cost, type: placement-cost, parameters: {lam: %s}}]\n"
        "profiles: [{name: default, picker: turn, scorers: [{plugin: cost, weight: %s}]}]\n"
        "handlers: [{name: default, type: single}]\n"
    )
    before = loads(MODELS + text % (0.1, 1), {})
    first = build_scheduler(before, context)

    def again(lam: float, weight: float):
        return build_scheduler(loads(MODELS + text % (lam, weight), {}), context, before=(before, first))

    def parts(scheduler) -> list[object]:
        profile = scheduler.profiles["default"]
        return [profile.picker[1], profile.scorers[0][1], scheduler.handlers["default"]]

    same, other = again(0.1, 2), again(0.2, 1)
    assert parts(same) == parts(first)
    assert same.profiles["default"].scorers[0][2] == 2
    assert [one is two for one, two in zip(parts(other), parts(first), strict=True)] == [True, False, True]


class Line:
    """An order that counts."""

    Parameters = MineParameters

    def __init__(self, parameters: MineParameters, context: Any) -> None:
        self.parameters, self.name, self.count = parameters, context.name, 0

    def queued(self, waiting):
        self.count += 1

    left = placed = rank = turn = queued

    def settled(self, waiting, seconds, output):
        pass


LINES = """\
models:
- {name: a, endpoints: [{url: 'http://a:1'}], queue: {order: %s}}
- {name: b, endpoints: [{url: 'http://b:1'}], queue: {order: one}}
- {name: c, endpoints: [{url: 'http://c:1'}]}
plugins:
- {name: best, type: max-score}
- {name: one, type: mine, parameters: {count: %d}}
- {name: two, type: mine}
profiles: [{name: default, picker: best}]
handlers: [{name: default, type: single}]
"""


@pytest.fixture
def with_lines(plugin_type) -> Registry:
    found = discover()
    return Registry([*found.plugins.values(), *found.handlers.values(), plugin_type("queue", "mine", Line)])


def test_each_model_with_a_queue_has_an_order_of_its_own(with_lines) -> None:
    config = loads(LINES % ("one", 3), {})
    orders = build_orders(config, context, with_lines)
    assert set(orders) == {"a", "b"}
    assert orders["a"] is not orders["b"]
    assert [(one.name, one.parameters.count) for one in orders.values()] == [("one", 3)] * 2
    assert build_scheduler(config, context, with_lines).profiles


def test_an_order_goes_on_where_it_is_the_same(with_lines) -> None:
    before = loads(LINES % ("one", 3), {})
    first = build_orders(before, context, with_lines)

    def again(order: str, count: int):
        return build_orders(loads(LINES % (order, count), {}), context, with_lines, (before, first))

    assert again("one", 3) == first
    changed = again("one", 4)
    assert not set(changed.values()) & set(first.values())
    other = again("two", 3)
    assert other["a"] is not first["a"]
    assert other["b"] is first["b"]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("tow", "plugins.yaml:2: models[0].queue.order: there is no plugin 'tow'; did you mean 'two'? Allowed: best, "),
        ("best", "plugins.yaml:2: models[0].queue.order: 'best' is a picker, not a queue. Allowed: one, two"),
        (
            "fair",
            "plugins.yaml:2: models[0].queue.order: there is no plugin 'fair', which is one of the default plugin",
        ),
    ],
)
def test_a_wrong_order_is_named_with_its_line(order, message, with_lines) -> None:
    with pytest.raises(ConfigError) as caught:
        build_orders(loads(LINES % (order, 3), {}), context, with_lines)
    assert message in caught.value.message


def test_an_order_is_no_part_of_a_profile(with_lines) -> None:
    text = (
        "plugins: [{name: best, type: max-score}, {name: one, type: mine}]\nprofiles: [{name: default, picker: one}]\n"
    )
    assert "profiles[0].picker: 'one' is a queue, not a picker. Allowed: best" in error(text, with_lines)


def test_an_order_at_fault_is_found_though_no_model_names_it(plugin_type) -> None:
    found = discover()
    registry = Registry([*found.plugins.values(), *found.handlers.values(), plugin_type("queue", "mine", Mine)])
    text = "plugins: [{name: best, type: max-score}, {name: one, type: mine}]\n"
    text += "profiles: [{name: default, picker: best}]\nhandlers: [{name: default, type: single}]\n"
    assert "(made:Mine, from maker 1.0) has no method 'queued', which a queue needs" in error(text, registry)
