from __future__ import annotations

import random
from collections.abc import Sequence

from gateway.core.clock import SystemClock
from gateway.framework import Context, Endpoint, NoParameters, Plan, Request
from gateway.scheduling.profile import Profile
from gateway.scheduling.rehearsal import MUTABLE, rehearsal
from gateway.scheduling.scheduler import Scheduler
from gateway.scheduling.single import Single
from pickers.power_of_two import PowerOfTwo
from pickers.round_robin import RoundRobin
from scorers.session_affinity import SessionAffinity
from tests.support.candidates import Notes, context, endpoint, request

FLEET = tuple(endpoint(number) for number in range(4))


class Remembers:
    """Adds to what it knows each time it is asked, and likes whom it has seen last."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}
        self.calls: list[str] = []

    def score(self, asked: Request, endpoints: Sequence[Endpoint], /) -> Sequence[float]:
        self.calls.append(asked.id)
        self.seen[asked.id] = len(self.seen)
        return [0.0] * len(endpoints)

    def pick(self, asked: Request, endpoints: Sequence[Endpoint], scores: Sequence[float], /) -> Sequence[Endpoint]:
        self.calls.append("pick")
        return endpoints

    def on_placed(self, asked: Request, plan: Plan, /) -> None:
        self.seen[asked.id] = -1


def single(profile: Profile, notes: Notes | None = None) -> Scheduler:
    return Scheduler({"default": profile}, {"default": Single(Single.Parameters(), context())}, notes or Notes())


def test_turns_are_not_taken() -> None:
    scheduler = single(Profile("default", (), (), ("turn", RoundRobin(NoParameters(), context()))))
    for expected in (*FLEET, *FLEET):
        assert rehearsal(scheduler).schedule(request(), FLEET).decode is expected
        assert rehearsal(scheduler).schedule(request(), FLEET).decode is expected
        assert scheduler.schedule(request(), FLEET).decode is expected


def test_draws_are_those_that_come() -> None:
    shared = Context("two", SystemClock(), random.Random(3))
    scheduler = single(Profile("default", (), (), ("two", PowerOfTwo(NoParameters(), shared))))
    for _ in range(30):
        foreseen = rehearsal(scheduler).schedule(request(), FLEET).decode
        assert scheduler.schedule(request(), FLEET).decode is foreseen


def test_what_a_plugin_shares_with_itself_it_shares_in_a_rehearsal() -> None:
    plugin = Remembers()
    scheduler = single(Profile("default", (), [("it", plugin, 1.0)], ("it", plugin)))
    rehearsed = rehearsal(scheduler)
    rehearsed.schedule(request(), FLEET)
    (_, copy, _) = rehearsed.profiles["default"].scorers[0]
    assert copy is rehearsed.profiles["default"].picker[1]
    assert copy.calls == [request().id, "pick"]
    assert (plugin.seen, plugin.calls) == ({}, [])


def test_what_is_too_much_to_copy_is_read_where_it_is() -> None:
    affinity = SessionAffinity(SessionAffinity.Parameters(), context())
    scheduler = single(Profile("default", (), [("it", affinity, 1.0)], ("turn", RoundRobin(NoParameters(), context()))))
    for number in range(1000):
        scheduler.placed(request(session=f"s{number}"), Plan.of(FLEET[number % 4]))
    rehearsed = rehearsal(scheduler)
    (_, copy, _) = rehearsed.profiles["default"].scorers[0]
    held = [value for value in vars(copy).values() if isinstance(value, MUTABLE)]
    assert not any(held)
    asked = request(session="s6")
    rehearsed.placed(asked, Plan.of(FLEET[3]))
    assert copy.score(asked, FLEET) == affinity.score(asked, FLEET) == [0, 0, 1, 0]


def test_failures_are_not_counted() -> None:
    class Fails(Remembers):
        def score(self, asked: Request, endpoints: Sequence[Endpoint], /) -> Sequence[float]:
            raise RuntimeError

    plugin, notes = Fails(), Notes()
    rehearsal(single(Profile("default", (), [("it", plugin, 1.0)], ("it", plugin)), notes)).schedule(request(), FLEET)
    assert vars(notes) == vars(Notes())
