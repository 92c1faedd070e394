"""Covers: gateway/commands/replay/tune.py, gateway/commands/replay/search.py.

The search finds what is better, and recommends nothing that is noise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import astuple
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from gateway.cli import EXIT_CONFIG, main
from gateway.commands.replay import search as module
from gateway.commands.replay.compare import Job
from gateway.commands.replay.fleet import kinds
from gateway.commands.replay.gains import Keep, keep
from gateway.commands.replay.groups import Shape
from gateway.commands.replay.policies import Policy, load_policy, with_parameters
from gateway.commands.replay.scene import Cell
from gateway.commands.replay.search import Found, Knob, Search, fills, knobs, split
from gateway.commands.replay.sources import GeneratedSource, TraceSource
from gateway.commands.replay.statistics import METRICS, Summary
from gateway.commands.replay.tune import report, snippet, warnings
from gateway.config.load import loads
from gateway.errors import ConfigError
from tests.commands.replay.runs import summary

EXCERPT = Path(__file__).parents[2] / "data" / "replay" / "mooncake_conversation.jsonl"
TRACE = Cell(TraceSource(EXCERPT), fleet=kinds("2 x 70b-tp4"), speed=0.5)
GOODPUT = METRICS["goodput"]


def test_what_is_searched() -> None:
    assert [knob.key for knob in knobs(load_policy("llm-d"))][:2] == [("queue", "weight"), ("kv", "weight")]
    default = {knob.key: knob.value for knob in knobs(load_policy("default"))}
    assert default[("cost", "lam")] == 0.5
    # Alone in its profile, a weight means nothing, nor what only a blend looks at.
    assert set(default) == {("cost", "lam"), ("cost", "reuse")}
    assert ("ours", "second") in {knob.key for knob in knobs(Policy("mine", loads(MODELS + BLEND, {"LAM": "1"})))}
    assert Knob(("dynamo", "block_size"), 16, whole=True) in knobs(load_policy("dynamo-cost"))
    assert knobs(load_policy("round-robin")) == []


def test_the_held_out_part_is_what_was_not_trained_on() -> None:
    training, held = split(TRACE)
    assert isinstance(training.source, TraceSource)
    assert isinstance(held.source, TraceSource)
    parts = [*training.source.recording().lines, *held.source.recording().lines]
    assert [astuple(one) for one in parts] == [astuple(one) for one in TraceSource(EXCERPT).recording().lines]
    first = Cell(TraceSource(EXCERPT, first=21))
    assert [len(part.source.recording().lines) for part in split(first) if isinstance(part.source, TraceSource)] == [
        10,
        11,
    ]
    groups = Cell(GeneratedSource(Shape(groups=1)))
    assert split(groups) == (groups, groups)
    with pytest.raises(ConfigError, match="cannot be split"):
        split(Cell(TraceSource(EXCERPT, first=3)))


class Hill:
    """Stands where runs would: goodput is highest at one value of ``cost.lam``, and nothing else matters."""

    def __init__(self, top: float, height: float = 0.2, noise: float = 0.0) -> None:
        self.top, self.height, self.noise = top, height, noise
        self.cells: list[Cell] = []
        self.seeds: set[int] = set()

    def run(self, jobs: Sequence[Job], *_: object, **__: object) -> list[Summary]:
        return [self.one(job) for job in jobs]

    def one(self, job: Job) -> Summary:
        self.cells.append(job.cell)
        self.seeds.add(job.seed)
        lam = next(plugin.parameters.get("lam", 0.5) for plugin in job.policy.config.plugins if plugin.name == "cost")
        off = abs(lam - self.top) / max(lam, self.top)
        return summary(job.policy.name, job.seed, goodput=0.8 - self.height * off + self.noise * (-1) ** job.seed * off)


def searched(
    hill: Hill,
    monkeypatch: pytest.MonkeyPatch,
    policy: Policy,
    cells: Sequence[Cell] = (TRACE,),
    keeps: Sequence[Keep] = (),
    **options: int,
) -> Found:
    monkeypatch.setattr(module, "run", hill.run)
    settings = {"seeds": 3, "budget": 60, "processes": 1, **options}
    return Search(cells, policy, GOODPUT, keeps=keeps, console=Console(file=StringIO()), **settings).search()


def test_it_climbs_to_the_top(monkeypatch) -> None:
    hill = Hill(top=0.45)
    found = searched(hill, monkeypatch, load_policy("default"))
    assert set(found.values) == {("cost", "lam")}
    assert found.values["cost", "lam"] == pytest.approx(0.45, rel=0.1)
    assert found.worth(GOODPUT)
    # Held out: other requests, and other seeds.
    assert len(set(hill.cells)) == 2
    # The other number changes nothing: one look at it, by one seed, and no candidate.
    assert [knob.name for knob in found.idle] == ["cost.reuse"]
    assert "nothing changes with it: cost.reuse" in report(load_policy("default"), GOODPUT, found, ["a trace"])[1]
    assert hill.seeds == {1, 2, 3, 1001, 1002, 1003}


def test_it_keeps_to_its_budget(monkeypatch) -> None:
    assert searched(Hill(top=50.0), monkeypatch, load_policy("default"), budget=6).tried <= 7


def test_what_is_best_already_stays(monkeypatch) -> None:
    found = searched(Hill(top=0.5), monkeypatch, load_policy("default"))
    assert found.values == {}
    assert not found.worth(GOODPUT)
    assert report(load_policy("default"), GOODPUT, found, ["a trace"])[-1].endswith("keep the configuration as it is")


def test_noise_is_not_recommended(monkeypatch) -> None:
    # On the mean it is better everywhere, and from seed to seed it is anything.
    policy = load_policy("default")
    found = searched(Hill(top=1.5, height=0.01, noise=0.3), monkeypatch, policy)
    assert found.values
    assert not found.worth(GOODPUT)
    lines = report(policy, GOODPUT, found, ["a trace"])
    assert "gained nothing beyond the noise" in lines[-2]
    assert "a gain like this one would be distinct from noise with " in lines[-1]
    assert not any(line.startswith("recommended") for line in lines)


def test_what_is_best_over_all_cells_is_found_and_not_what_is_best_in_one(monkeypatch) -> None:
    """One cell would have 0.25, one 1.0, at the same price for either; the third is flat."""
    low, high, flat = Hill(top=0.25), Hill(top=1.0), Hill(top=1.0, height=0.0)
    cells = [dataclasses.replace(TRACE, speed=speed) for speed in (0.3, 0.6, 0.9)]
    monkeypatch.setattr(
        module,
        "run",
        lambda jobs, *_, **__: [{0.3: low, 0.6: high, 0.9: flat}[job.cell.speed].one(job) for job in jobs],
    )
    policy = with_parameters(load_policy("default"), {("cost", "lam"): 4.0})
    found = Search(
        cells, policy, GOODPUT, seeds=3, budget=60, processes=1, console=Console(file=StringIO())
    ).search()  # fmt: skip
    assert 0.25 <= found.values["cost", "lam"] <= 1.0
    assert found.worth(GOODPUT)
    lines = report(policy, GOODPUT, found, [cell.name for cell in cells])
    assert "in 3 cells" in lines[0]
    assert [line.strip() for line in lines].count(cells[2].name) == 2
    assert any(line.startswith("  mean of the cells: goodput better by") for line in lines)


class Priced(Hill):
    """And the further from 0.5 the weight is, the longer the slowest wait; ``held``: only there."""

    def __init__(self, price: float, held: bool = False) -> None:
        super().__init__(top=2.0)
        self.price, self.held = price, held

    def one(self, job: Job) -> Summary:
        found = super().one(job)
        lam = next(plugin.parameters.get("lam", 0.5) for plugin in job.policy.config.plugins if plugin.name == "cost")
        charged = self.price * (lam - 0.5) if not self.held or job.seed > module.HELD_OUT_SEEDS else 0.0
        return dataclasses.replace(found, values={**found.values, "ttft_p99": 10.0 * (1 + charged)})


def test_what_is_to_be_kept_bounds_the_search(monkeypatch) -> None:
    policy, keeps = load_policy("default"), [keep("p99 TTFT=10%")]
    assert searched(Priced(0.2), monkeypatch, policy).values["cost", "lam"] > 1.5
    found = searched(Priced(0.2), monkeypatch, policy, keeps=keeps)
    assert 0.5 < found.values["cost", "lam"] <= 1.0
    assert found.worth(GOODPUT)
    assert all(each.kept(found.held_tuned, found.held_given) for each in keeps)
    assert "TTFT p99 at most 10 % worse" in report(policy, GOODPUT, found, ["a trace"], keeps)[0]


def test_and_what_is_not_kept_where_it_was_held_out_is_not_recommended(monkeypatch) -> None:
    policy, keeps = load_policy("default"), [keep("ttft_p99")]
    found = searched(Priced(0.2, held=True), monkeypatch, policy, keeps=keeps)
    assert found.worth(GOODPUT)
    assert not all(each.kept(found.held_tuned, found.held_given) for each in keeps)
    last = report(policy, GOODPUT, found, ["a trace"], keeps)[-1]
    assert "TTFT p99 gets" in last
    assert "% worse, 2 % were allowed: keep the configuration as it is" in last


def test_a_cell_whose_objective_is_at_its_end_is_named() -> None:
    runs = [[summary(seed=seed, goodput=share) for seed in (1, 2)] for share in (0.0, 0.5, 1.0)]
    found = Found({}, runs, runs, runs, runs, 3)
    lines = report(load_policy("default"), GOODPUT, found, ["idle", "busy", "overloaded"])
    assert lines[1] == "goodput says nothing in idle and overloaded: it is 0 or all there; choose another load"


def test_what_follows_from_the_requests_is_left_to_them(monkeypatch) -> None:
    """A number that is not searched stays null: its usual value is not written into the candidates of others."""
    seen: list[object] = []

    class Watched(Hill):
        def one(self, job: Job) -> Summary:
            [cost] = [plugin.parameters for plugin in job.policy.config.plugins if plugin.name == "cost"]
            if "reuse" in cost:
                seen.append(cost.get("lam"))
            return super().one(job)

    searched(Watched(top=0.5), monkeypatch, load_policy("default"))
    assert seen
    assert set(seen) == {None}


@pytest.mark.parametrize(("seeds", "said"), [(2, "2 seeds are hardly ever enough"), (3, None), (8, None)])
def test_seeds_that_can_hardly_convince_are_named_before(seeds, said) -> None:
    found = warnings(seeds)
    assert [line for line in found if said and line.startswith(said)] == found
    assert bool(found) == bool(said)


def test_what_its_plugin_refuses_is_not_tried(monkeypatch) -> None:
    seen: list[object] = []

    class Watched(Hill):
        def one(self, job: Job) -> Summary:
            seen.extend(plugin.parameters.get("reuse") for plugin in job.policy.config.plugins)
            return super().one(job)

    searched(Watched(top=0.3), monkeypatch, load_policy("default"))
    given = [value for value in seen if value is not None]
    assert given
    assert all(isinstance(value, float) and 0 <= value <= 1 for value in given)


BLEND = """
plugins:
- {name: healthy, type: healthy}
- {name: "no", type: prefix-cache}
- {name: queue, type: queue-depth}
- {name: ours, type: placement-cost, parameters: {lam: "${LAM}"}}
- {name: best, type: max-score}
profiles:
- name: default
  filters: [healthy]
  scorers: [{plugin: "no", weight: 3}, {plugin: queue, weight: 2}, {plugin: ours}]
  picker: best
"""
MODELS = "models: [{name: m, endpoints: [{url: 'http://a:1'}]}]\n"


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ("", {("cost", "lam"): 0.2}),
        ("", {("cost", "reuse"): 0.25}),
        (BLEND, {("queue", "weight"): 4.0}),
        (BLEND, {("queue", "half"): 8.0, ("no", "weight"): 0.00001}),
        (BLEND, {("ours", "lam"): 0.25, ("ours", "weight"): 2.0}),
    ],
)
def test_a_recommendation_can_be_pasted(given, values) -> None:
    """In place of the file's plugins and profiles it gives what was measured."""
    env = {"LAM": "0.5"}
    policy = Policy("mine", loads(MODELS + given, env))
    pasted = loads(MODELS + "\n".join(snippet(policy, values)), env)
    assert pasted == with_parameters(policy, values).config
    assert knobs(Policy("pasted", pasted))


def test_a_recommendation_of_a_policy_by_name_is_whole() -> None:
    values = {("queue", "weight"): 4.0}
    pasted = loads(MODELS + "\n".join(snippet(load_policy("llm-d"), values)), {})
    expected = with_parameters(load_policy("llm-d"), values).config
    assert (pasted.plugins, pasted.profiles) == (expected.plugins, expected.profiles)
    assert pasted.models[0].handler in {handler.name for handler in pasted.handlers}


def test_a_handler_may_rely_on_its_default_profile() -> None:
    config = loads(MODELS + "handlers: [{name: default, type: single}]\n", {})
    assert knobs(Policy("mine", config)) == knobs(load_policy("default"))


def test_a_policy_without_numbers_is_refused() -> None:
    with pytest.raises(ConfigError, match="have no number"):
        Search(
            [TRACE],
            load_policy("round-robin"),
            GOODPUT,
            seeds=2,
            budget=5,
            processes=1,
            console=Console(file=StringIO()),
        )


def test_it_runs_from_end_to_end(capsys) -> None:
    code = main(
        ["tune", str(EXCERPT), "default", "--first", "80", "--endpoints", "2", "--speed", "0.6", "--seeds", "2",
         "--jobs", "1", "--budget", "2", "--objective", "ttft_mean"]
    )  # fmt: skip
    out, err = capsys.readouterr()
    assert code == 0
    assert "2 seeds are hardly ever enough" in err
    assert "candidates tried for TTFT mean" in out
    assert "recommended" in out or "keep the configuration" in out


def test_what_a_full_cache_pushes_out_is_not_searched_where_none_can_be_full(monkeypatch) -> None:
    small = Cell(GeneratedSource(Shape(groups=1, users=2, rounds=2)), fleet=kinds("2 x 70b-tp4"), speed=0.5)
    assert not fills(split(small)[0])
    assert fills(split(TRACE)[0])
    seen: list[object] = []

    class Watched(Hill):
        def one(self, job: Job) -> Summary:
            seen.extend(plugin.parameters.get("reuse") for plugin in job.policy.config.plugins)
            return super().one(job)

    found = searched(Watched(top=0.3), monkeypatch, load_policy("default"), cells=[small])
    assert [knob.name for knob in found.idle] == ["cost.reuse"]
    assert set(seen) == {None}
    assert found.values


def test_several_cells_from_end_to_end(capsys) -> None:
    code = main(
        ["tune", f"{EXCERPT},groups", "default", "--first", "40", "--groups", "3", "--users", "2", "--rounds", "2",
         "--output", "40", "--endpoints", "2", "--speed", "0.5,1", "--seeds", "2", "--jobs", "1", "--budget", "1",
         "--objective", "mean TTFT", "--keep", "goodput=100"]
    )  # fmt: skip
    assert code == 0
    assert "candidates tried for TTFT mean in 4 cells, goodput at most 100 pp worse" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--keep", "luck"], "--keep: there is no figure 'luck'"),
        (["--keep", "goodput=-1"], "it may be 0 to 100 % worse"),
        (["--keep", "goodput=some"], "--keep: 'some' is no number"),
        (["--speed", "0.5,fast"], "--speed: 'fast' is no number"),
        (["--seeds", "1"], "seeds must be at least 2"),
        (["--budget", "0"], "budget must be at least 1"),
        (["--objective", "luck"], "--objective: there is no figure 'luck'"),
    ],
)
def test_mistakes_are_named(capsys, arguments, said) -> None:
    assert main(["tune", str(EXCERPT), "default", *arguments]) == EXIT_CONFIG
    assert said in capsys.readouterr().err
