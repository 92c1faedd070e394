from __future__ import annotations

from gateway.framework import NoParameters
from gateway.scheduling.profile import Profile
from gateway.scheduling.scheduler import Scheduler
from gateway.scheduling.single import Single
from gateway.scheduling.trace import Roster, Trace
from pickers.max_score import MaxScore
from scorers.prefix_cache import PrefixCache
from tests.support.candidates import Notes, context, endpoint, request


def test_a_decision_is_the_same_with_a_trace_as_without() -> None:
    none = NoParameters()
    profile = Profile(
        "default", (), [("affinity", PrefixCache(none, context()), 2.0)], ("best", MaxScore(none, context()))
    )
    scheduler = Scheduler({"default": profile}, {"default": Single(Single.Parameters(), context())}, Notes())
    fleet, asked, trace = (endpoint(0), endpoint(1)), request(100, held={1: 50}), Trace({})
    plan = scheduler.schedule(asked, fleet, trace)
    assert plan == scheduler.schedule(asked, fleet)
    (run,) = trace.runs
    assert run.roster == Roster.of(fleet)
    assert run.weights == {"affinity": 2.0}
    assert run.scores() == {"e0": (0.0, {"affinity": 0.0}), "e1": (1.0, {"affinity": 0.5})}
    assert run.picked == plan.decode.name
