from __future__ import annotations

from typing import Any

import pytest

from gateway import framework
from gateway.errors import NoEndpoint, PluginFailed
from gateway.framework import Outcome, Plan
from gateway.framework.fleet import Model
from gateway.framework.request import PlannedLeg
from gateway.scheduling.profile import Profile
from gateway.scheduling.scheduler import Scheduler
from gateway.scheduling.single import Single
from gateway.scheduling.trace import Trace
from tests.support.candidates import Notes, context, endpoint, request

A, B = endpoint(0), endpoint(1)


class First:
    def pick(self, _request: Any, endpoints: Any, _scores: Any, /) -> Any:
        return [endpoints[0]]


class Nothing:
    def filter(self, _request: Any, _endpoints: Any, /) -> Any:
        return []


class Runs:
    def __init__(self, function: Any) -> None:
        self.plan = function


def scheduler(notes: Notes, handler: Any, **profiles: Profile) -> Scheduler:
    profiles = profiles or {"default": Profile("default", (), (), ("first", First()))}
    return Scheduler(profiles, {"default": handler}, notes)


def test_single_plans_the_best_of_its_profile() -> None:
    single = Single(Single.Parameters(), context())
    assert single.profiles == ("default",)
    assert scheduler(Notes(), single).schedule(request(), (A, B)) == Plan.of(A, reason="single")


def test_the_model_says_which_handler() -> None:
    other = request(model=Model(name="m", handler="absent"))
    with pytest.raises(PluginFailed, match="handler 'absent' of model 'm'"):
        scheduler(Notes(), Single(Single.Parameters(), context())).schedule(other, (A, B))


def test_no_endpoint_passes_through_a_handler_as_it_is() -> None:
    notes = Notes()
    empty = Profile("default", [("none", Nothing())], (), ("first", First()))
    with pytest.raises(NoEndpoint, match="'none'"):
        scheduler(notes, Single(Single.Parameters(), context()), default=empty).schedule(request(), (A, B))
    assert notes.failed == []


def test_a_handler_may_cure_a_profile_that_found_nothing() -> None:
    def plan(_request: Any, endpoints: Any, run: Any) -> Plan:
        try:
            return Plan.of(run("strict", endpoints)[0])
        except framework.NoEndpoint:  # what a third party's handler can import
            return Plan.of(run("lax", endpoints)[0], reason="lax")

    strict = Profile("strict", [("none", Nothing())], (), ("first", First()))
    lax = Profile("lax", (), (), ("first", First()))
    trace = Trace({})
    made = scheduler(Notes(), Runs(plan), strict=strict, lax=lax).schedule(request(), (A, B), trace)
    assert made.reason == "lax"
    assert [run.profile for run in trace.runs] == ["strict", "lax"]


@pytest.mark.parametrize(
    "plan",
    [
        lambda r, e, run: 1 / 0,
        lambda r, e, run: None,
        lambda r, e, run: e[0],
        lambda r, e, run: Plan.of(endpoint(0)),
        lambda r, e, run: Plan.of(e[0], prefill=endpoint(0)),
        lambda r, e, run: Plan.of(e[0], encode=endpoint(0)),
        lambda r, e, run: Plan(()),
        lambda r, e, run: Plan((PlannedLeg(("prefill", e[0])),)),
        lambda r, e, run: Plan((PlannedLeg(("decode", e[0])), PlannedLeg(("prefill", e[1])))),
        lambda r, e, run: Plan(
            (PlannedLeg(("prefill", e[0])), PlannedLeg(("prefill", e[1])), PlannedLeg(("decode", e[0])))
        ),
        lambda r, e, run: Plan.of(run("absent", e)[0]),
    ],
    ids=[
        *("raises", "none", "no-plan", "foreign", "foreign-prefill", "foreign-third", "no-leg", "no-decode"),
        *("decode-first", "a-kind-twice", "unknown-profile"),
    ],
)
def test_a_broken_handler_fails_the_request(plan: Any) -> None:
    notes = Notes()
    with pytest.raises(PluginFailed, match="the handler 'default' failed"):
        scheduler(notes, Runs(plan)).schedule(request(), (A, B))
    assert [(kind, name) for kind, name, _ in notes.failed] == [("handler", "default")]


class Remembering(First):
    def __init__(self, broken: bool = False) -> None:
        self.seen: list[Any] = []
        self.broken = broken

    def on_placed(self, request: Any, plan: Any, /) -> None:
        self._note("placed")

    def on_settled(self, request: Any, plan: Any, outcome: Any, /) -> None:
        self._note(outcome.outcome)

    def _note(self, word: str) -> None:
        self.seen.append(word)
        if self.broken:
            raise RuntimeError(word)


def test_plugins_that_remember_are_told_once_and_cannot_break_anything() -> None:
    notes, shared, broken = Notes(), Remembering(), Remembering(broken=True)
    one = Scheduler(
        {
            "a": Profile("a", (), (), ("shared", shared)),
            "b": Profile("b", (), (), ("shared", shared)),
            "c": Profile("c", (), (), ("broken", broken)),
        },
        {"default": Single(Single.Parameters(profile="a"), context())},
        notes,
    )
    plan = one.schedule(request(), (A, B))
    one.placed(request(), plan)
    one.settled(request(), plan, Outcome(outcome="ok", status=200, duration=1.0))
    assert shared.seen == broken.seen == ["placed", "ok"]
    assert one.on_settled
    assert not Scheduler({"a": Profile("a", (), (), ("first", First()))}, {}, notes).on_settled
    assert [(kind, name) for kind, name, _ in notes.failed] == [("picker", "broken")] * 2


class Told:
    """Has heard notes, and remembers them for others."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    def score(self, _request: Any, endpoints: Any, /) -> Any:
        return [0.0] * len(endpoints)

    def on_heard(self, note: bytes, /) -> None:
        if note == b"wrong":
            raise ValueError(note)
        self.heard.append(note)

    def remembered(self) -> Any:
        return (note if note != b"broken" else 1 / 0 for note in self.heard)


def test_notes_of_other_workers_reach_the_plugin_of_that_name_and_cannot_break_anything() -> None:
    notes, told, other = Notes(), Told(), Told()
    scorers = (("told", told, 1.0), ("other", other, 1.0))
    one = Scheduler({"a": Profile("a", (), scorers, ("first", First()))}, {"told": Runs(None)}, notes)
    for name, note in (("told", b"1"), ("nobody", b"2"), ("first", b"3"), ("told", b"wrong"), ("told", b"broken")):
        one.heard(name, note)
    assert (told.heard, other.heard) == ([b"1", b"broken"], [])
    one.heard("other", b"4")
    assert list(one.remembered()) == [("told", b"1"), ("other", b"4")]
    assert [name for _, name, _ in notes.failed] == ["told", "told"]


def test_plugins_tell_the_client_in_the_answer_s_head() -> None:
    class Says(First):
        def __init__(self, **headers: str) -> None:
            self.headers = headers

        def answer_headers(self, _request: Any, plan: Plan, /) -> dict[str, str]:
            return {name: f"{value}-{plan.decode.name}" for name, value in self.headers.items()}

    class Fails(Nothing):
        def answer_headers(self, _request: Any, _plan: Plan, /) -> dict[str, str]:
            raise RuntimeError

    notes = Notes()
    profile = Profile("default", [("fails", Fails())], (), ("says", Says(a="one")))
    other = Profile("other", (), (), ("also", Says(a="two", b="three")))
    made = scheduler(notes, Single(Single.Parameters(), context()), default=profile, other=other)
    assert made.answering
    assert made.answer_headers(request(), Plan.of(A)) == [("a", "two-e0"), ("b", "three-e0")]
    assert [(kind, name) for kind, name, _ in notes.failed] == [("filter", "fails")]
    assert not scheduler(Notes(), Single(Single.Parameters(), context())).answering
