from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import NoEndpoint, PluginFailed
from gateway.framework import Endpoint, Request
from gateway.scheduling.profile import Profile, run_profile
from gateway.scheduling.trace import Trace
from tests.support.candidates import Notes, endpoint, request
from tests.support.examples import examples


class Rule:
    def __init__(self, function: Callable[[Sequence[Endpoint]], Any]) -> None:
        self.function = function

    def filter(self, _request: Any, endpoints: Sequence[Endpoint], /) -> Any:
        return self.function(endpoints)


class Advice:
    def __init__(self, scores: Any) -> None:
        self.scores = scores

    def score(self, _request: Any, endpoints: Sequence[Endpoint], /) -> Any:
        return self.scores(endpoints) if callable(self.scores) else self.scores


class Choice:
    def __init__(self, function: Callable[[Sequence[Endpoint]], Any] | None = None) -> None:
        self.function = function
        self.seen: dict[Endpoint, float] = {}

    def pick(self, _request: Any, endpoints: Sequence[Endpoint], scores: Sequence[float], /) -> Any:
        self.seen = dict(zip(endpoints, scores, strict=True))
        return [max(self.seen, key=self.seen.__getitem__)] if self.function is None else self.function(endpoints)


def fail(*_: Any) -> Any:
    raise RuntimeError("sk-secret")


def run(
    one: Profile, asked: Request, endpoints: Sequence[Endpoint], notes: Notes, trace: Trace | None = None
) -> Sequence[Endpoint]:
    return run_profile({one.name: one}, asked, notes, trace, one.name, endpoints)


def profile(filters: Any = (), scorers: Any = (), picker: Any = None) -> Profile:
    return Profile("p", filters, scorers, ("best", picker or Choice()))


A, B, C = endpoint(0), endpoint(1), endpoint(2)


def test_filters_then_weighted_scores_then_picker() -> None:
    picker, trace = Choice(), Trace({})
    one = profile(
        filters=[("no-c", Rule(lambda es: [e for e in es if e is not C]))],
        scorers=[("x", Advice([0.5, 1.0]), 2.0), ("y", Advice([1.0, 0.25]), 1.0)],
        picker=picker,
    )
    assert run(one, request(), (A, B, C), Notes(), trace) == [B]
    assert picker.seen == {A: 2.0, B: 2.25}
    assert list(picker.seen) == [A, B]
    assert trace.runs[0].scores() == {"e0": (2.0, {"x": 0.5, "y": 1.0}), "e1": (2.25, {"x": 1.0, "y": 0.25})}


@pytest.mark.parametrize("weights", [(1.0,), (2.0,), (1.0, 1.0)])
def test_a_picker_that_changes_its_scores_changes_nothing_else(weights: tuple[float, ...]) -> None:
    class Spoiling:
        def pick(self, _request: Any, endpoints: Sequence[Endpoint], scores: Any, /) -> Sequence[Endpoint]:
            best = scores.index(max(scores))
            scores[:] = [0.0] * len(scores)
            return [endpoints[best]]

    kept, trace = [0.25, 0.5], Trace({})
    one = profile(scorers=[(f"s{i}", Advice(kept), w) for i, w in enumerate(weights)], picker=Spoiling())
    for _ in range(2):
        assert run(one, request(), (A, B), Notes(), trace) == [B]
    assert kept == [0.25, 0.5]
    each = {f"s{i}": 0.5 for i in range(len(weights))}
    assert [made.scores()["e1"] for made in trace.runs] == [(0.5 * sum(weights), each)] * 2


def test_no_plugin_puts_the_candidates_into_another_order() -> None:
    """Scores are aligned with them."""

    def turn(endpoints: Any) -> Any:
        endpoints.reverse()
        return endpoints

    for filters, scorers, picker in (
        ([("turn", Rule(turn))], [], Choice()),
        ([("list", Rule(list)), ("turn", Rule(turn))], [], Choice()),
        ([], [("turn", Advice(lambda es: [0.0] * len(turn(es))), 1.0)], Choice()),
        ([], [], Choice(turn)),
    ):
        given, notes, trace = [A, B], Notes(), Trace({})
        with suppress(PluginFailed):
            run(profile(filters, scorers, picker), request(), given, notes, trace)
        assert [type(error) for _, _, error in notes.failed] == [AttributeError]
        assert given == [A, B]


def test_what_a_filter_removed_is_no_candidate_for_who_comes_after_it() -> None:
    removing = ("no-a", Rule(lambda es: es[1:]))
    for trace in (None, Trace({})):
        notes = Notes()
        with pytest.raises(PluginFailed, match="filter 'back'"):
            run(profile(filters=[removing, ("back", Rule(lambda es: [A]))]), request(), (A, B, C), notes, trace)
        with pytest.raises(PluginFailed, match="picker 'best'"):
            run(profile(filters=[removing], picker=Choice(lambda es: [A])), request(), (A, B, C), notes, trace)
        assert len(notes.failed) == 2


def test_other_candidates_than_the_last_ones_are_checked_and_recorded_as_themselves() -> None:
    one, trace = profile(picker=Choice(lambda es: [es[-1]])), Trace({})
    for endpoints in ((A, B), (B, C), (C,), (A, B)):
        assert run(one, request(), endpoints, Notes(), trace) == [endpoints[-1]]
    assert [made.roster.names for made in trace.runs] == [("e0", "e1"), ("e1", "e2"), ("e2",), ("e0", "e1")]


def test_without_scorers_every_candidate_scores_nothing() -> None:
    picker, trace = Choice(), Trace({})
    run(profile(picker=picker), request(), (A, B), Notes(), trace)
    assert picker.seen == {A: 0.0, B: 0.0}
    assert trace.runs[0].scores() == {"e0": (0.0, {}), "e1": (0.0, {})}


def test_the_filter_that_leaves_nothing_is_named() -> None:
    seen: list[Any] = []
    one = profile(filters=[("zone", Rule(lambda es: [])), ("after", Rule(seen.append))])
    with pytest.raises(NoEndpoint, match=r"model 'm'.*filter 'zone' of profile 'p' removed the 2 left") as caught:
        run(one, request(), (A, B), Notes())
    assert caught.value.status == 503
    assert caught.value.retry_after is not None
    assert seen == []


def test_no_endpoints_at_all() -> None:
    with pytest.raises(NoEndpoint, match="model 'm' has no endpoint"):
        run(profile(), request(), (), Notes())


@pytest.mark.parametrize(
    "broken",
    [
        fail,
        lambda es: None,
        lambda es: [endpoint(0)],
        lambda es: [es[0], es[0]],
        lambda es: (e for e in es),
        lambda es: ["e0"],
    ],
    ids=["raises", "none", "foreign", "twice", "generator", "names"],
)
def test_a_broken_filter_fails_the_request(broken: Any) -> None:
    notes = Notes()
    with pytest.raises(PluginFailed, match="the filter 'rule' of profile 'p' failed") as caught:
        run(profile(filters=[("rule", Rule(broken))]), request(), (A, B), notes)
    assert [(kind, name) for kind, name, _ in notes.failed] == [("filter", "rule")]
    assert "sk-secret" not in caught.value.message


@pytest.mark.parametrize(
    "broken",
    [fail, [], [0.5], [0.5] * 3, None, ["a", "b"], [None, 0.5]],
    ids=["raises", "empty", "short", "long", "none", "words", "hole"],
)
def test_a_broken_scorer_is_silent(broken: Any) -> None:
    notes, picker, trace = Notes(), Choice(), Trace({})
    one = profile(scorers=[("bad", Advice(broken), 5.0), ("good", Advice([0.1, 0.9]), 1.0)], picker=picker)
    assert run(one, request(), (A, B), notes, trace) == [B]
    assert [(kind, name) for kind, name, _ in notes.failed] == [("scorer", "bad")]
    terms = [terms for _, terms in trace.runs[0].scores().values()]
    assert terms == [{"bad": 0.0, "good": 0.1}, {"bad": 0.0, "good": 0.9}]
    assert picker.seen == {A: 0.1, B: 0.9}


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, -0.001, 1.001, 10**400])
def test_a_score_out_of_range_counts_as_nothing(score: float) -> None:
    notes, picker = Notes(), Choice()
    one = profile(scorers=[("odd", Advice([score, 0.5]), 1.0)], picker=picker)
    assert run(one, request(), (A, B), notes) == [B]
    assert notes.refused == ["odd"]
    assert picker.seen == {A: 0.0, B: 0.5}


@pytest.mark.parametrize(
    "broken",
    [fail, lambda es: [], lambda es: None, lambda es: [endpoint(0)], lambda es: [0.0, 0.5], lambda es: [es[0]] * 2],
    ids=["raises", "nothing", "none", "foreign", "scores", "twice"],
)
def test_a_broken_picker_fails_the_request(broken: Any) -> None:
    notes = Notes()
    with pytest.raises(PluginFailed, match="the picker 'best' of profile 'p' failed"):
        run(profile(picker=Choice(broken)), request(), (A, B), notes)
    assert [(kind, name) for kind, name, _ in notes.failed] == [("picker", "best")]


def test_the_trace_says_what_happened() -> None:
    one = profile(
        filters=[("all", Rule(lambda es: es)), ("no-a", Rule(lambda es: es[1:]))],
        scorers=[("x", Advice([0.5, 1.0]), 2.0), ("bad", Advice(fail), 1.0)],
    )
    trace = Trace({})
    run(one, request(), (A, B, C), Notes(), trace)
    (made,) = trace.runs
    assert made.removed == (("no-a", ("e0",)),)
    assert made.weights == {"x": 2.0, "bad": 1.0}
    assert made.silent == {"bad": "RuntimeError: sk-secret"}
    assert list(made.scores()) == ["e1", "e2"]
    assert made.picked == "e2"


def test_the_trace_of_a_failure_ends_where_it_failed() -> None:
    one = profile(filters=[("none", Rule(lambda es: []))])
    trace = Trace({})
    with pytest.raises(NoEndpoint):
        run(one, request(), (A, B), Notes(), trace)
    (made,) = trace.runs
    assert made.removed == (("none", ("e0", "e1")),)
    assert made.scores() == {}
    assert made.picked is None


@examples(100)
@given(data=st.data(), count=st.integers(1, 12), weights=st.lists(st.floats(0, 10), max_size=4))
def test_whatever_scorers_say_the_best_valid_sum_wins(data: st.DataObject, count: int, weights: list[float]) -> None:
    endpoints = tuple(endpoint(slot) for slot in range(count))
    tables = [data.draw(st.lists(st.floats(), min_size=count, max_size=count)) for _ in weights]
    notes, picker = Notes(), Choice()
    one = profile(
        scorers=[(f"s{i}", Advice(t), w) for i, (t, w) in enumerate(zip(tables, weights, strict=True))], picker=picker
    )
    (picked,) = run(one, request(), endpoints, notes)
    expected = []
    for i in range(count):
        valid = [(w, t[i]) for t, w in zip(tables, weights, strict=True) if 0 <= t[i] <= 1]
        expected.append(sum(w * score for w, score in valid))
    assert list(picker.seen) == list(endpoints)
    assert list(picker.seen.values()) == pytest.approx(expected)
    assert picker.seen[picked] == max(picker.seen.values())
    assert len(notes.refused) == sum(not 0 <= score <= 1 for table in tables for score in table)
    assert notes.failed == []
