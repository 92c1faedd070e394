"""Covers: gateway/scheduling/prefill_decode.py, gateway/scheduling/split_cost.py.

The handler ``prefill-decode`` where costs decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.errors import NoEndpoint
from gateway.framework import Endpoint, Kind, Plan, Request, Role
from gateway.framework.fleet import EngineMetrics, TransferStats
from gateway.framework.match import Match, Matches
from gateway.scheduling.prefill_decode import THRESHOLD, PrefillDecode
from gateway.scheduling.split_cost import KV_BYTES, Assumptions, SplitCost
from tests.support.candidates import Physics, context, endpoint, request
from tests.support.examples import examples

P, D, BOTH = Role.PREFILL, Role.DECODE, Role.BOTH
DEFAULTS = PrefillDecode.Parameters()
NOW = 0.0

# A token takes 1 ms to compute, a step 20 ms and 1 ms for each request, a second leg 10 ms; moving KV next to nothing.
LAM = 0.1
"""So a stall counts a tenth for each answer that runs."""


class Profiles:
    """``run``: those that are up, in their order, or in that of ``order``; remembers what it was asked."""

    def __init__(self, **order: Sequence[int]) -> None:
        self.order = order
        self.asked: list[tuple[str, list[int]]] = []

    def __call__(self, name: str, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]:
        self.asked.append((name, [one.slot for one in endpoints]))
        if not (up := [one for one in endpoints if one.engine.up]):
            raise NoEndpoint(f"{name} has none")
        order = self.order.get(name)
        return up if order is None else sorted(up, key=lambda one: order.index(one.slot))


def plan(
    endpoints: Sequence[Endpoint], asked: Request | None = None, run: Profiles | None = None, **parameters: Any
) -> Plan:
    handler = PrefillDecode(PrefillDecode.Parameters(**{"lam": LAM, **parameters}), context())
    return handler.plan(asked or request(), endpoints, run or Profiles())


def costs(**given: Any) -> SplitCost:
    values = {name: getattr(DEFAULTS, name) for name in Assumptions.__slots__} | {"lam": LAM} | given
    return SplitCost(Assumptions(**values))


def moved(transfers: float, size: float, seconds: float, tokens: float = 0.0) -> EngineMetrics:
    """Metrics of an engine that has lately moved so many transfers of ``size`` bytes in ``seconds`` each."""
    return EngineMetrics(
        at=1.0, recent_transfers=TransferStats(transfers, transfers * size, transfers * seconds, transfers * tokens)
    )


class TestWhatDecides:
    def test_cost_by_itself_and_the_threshold_where_one_is_given(self) -> None:
        idle = endpoint(0, role=P), endpoint(1, role=D)
        assert plan(idle, request(1000)).reason == "cheaper-whole"
        assert plan(idle, request(1000), threshold=1000).reason == "split"
        assert plan(idle, request(1000), threshold=1001).reason == "short"
        assert plan(idle, request(1000), decide="threshold").reason == "split"
        assert plan(idle, request(1000), decide="cost", threshold=1000).reason == "cheaper-whole"

    @pytest.mark.parametrize(
        ("tokens", "held", "busy", "split"),
        [
            (4000, 0, 0, False),  # nobody would be held up
            (4000, 0, 20, True),
            (10, 0, 20, False),  # shorter than a second leg
            (4000, 3990, 20, False),  # as is what is left of it
            (4000, 2000, 20, True),
            (100, 0, 4, False),
            (100, 0, 40, True),  # what is too short for a few is not for many
        ],
    )
    def test_by_what_is_held_up(self, tokens: int, held: int, busy: int, split: bool) -> None:
        fleet = endpoint(0, role=P), endpoint(1, role=D, requests=busy)
        made = plan(fleet, request(tokens, held={1: held}))
        assert (
            made == Plan.of(fleet[1], prefill=fleet[0], reason="split")
            if split
            else Plan.of(fleet[1], reason="cheaper-whole")
        )

    @pytest.mark.parametrize(("queued", "split"), [(0, True), (5_000, True), (20_000, False)])
    def test_by_the_queue_before_the_prefill(self, queued: int, split: bool) -> None:
        fleet = endpoint(0, role=P, prefill_tokens=queued), endpoint(1, role=D, requests=20)
        assert (plan(fleet, request(4000)).prefill is not None) == split

    def test_by_what_waits_at_the_gateway_for_either(self) -> None:
        """As by what is queued there: with 0.1 s of it the prefill endpoint is too late, unless the other has more."""
        here = endpoint(0, role=P), endpoint(1, role=D, requests=8)
        asked = request(1000)
        assert plan(here, asked).reason == "split"
        asked.ahead = {0: 5.0}
        assert plan(here, asked).reason == "cheaper-whole"
        asked.ahead = {0: 5.0, 1: 5.0}
        assert plan(here, asked).reason == "split"

    @pytest.mark.parametrize(
        ("metrics", "parameters", "split"),
        [
            (EngineMetrics(), {}, True),
            (EngineMetrics(), {"rate": 1e8}, False),  # 1.3 GB at 100 MB a second
            (EngineMetrics(), {"rate": 1e8, "kv_bytes": 1000}, True),
            (moved(50, 1e9, 0.04), {"rate": 1e8}, True),  # the engine has shown better
            (moved(50, 1e9, 10), {}, False),  # and worse
            (moved(50, 1e9, 10), {"workers": 8}, True),  # that was each of eight for itself
            (moved(0.01, 1e9, 10), {}, True),  # long ago
            (moved(50, 1e9, 10, tokens=1e6), {}, True),  # slow, but a token has a thousand bytes only
            (moved(50, 1e9, 10, tokens=1e6), {"kv_bytes": KV_BYTES}, False),
        ],
    )
    def test_by_what_moving_takes(self, metrics: EngineMetrics, parameters: dict[str, Any], split: bool) -> None:
        fleet = endpoint(0, role=P), endpoint(1, role=D, requests=20, metrics=metrics)
        assert (plan(fleet, request(4000), **parameters).prefill is not None) == split

    def test_where_engines_push_the_sender_knows_how_fast(self) -> None:
        slow, decode = endpoint(0, role=P, metrics=moved(50, 1e9, 10)), endpoint(1, role=D, requests=20)
        assert plan((slow, decode), request(4000)).prefill is None
        fast = endpoint(2, role=P, metrics=moved(50, 1e9, 0.04))
        assert plan((slow, decode, fast), request(4000)).prefill is fast

    @pytest.mark.parametrize(("lam", "split"), [(0.0, False), (0.1, True)])
    def test_by_the_weight_of_others(self, lam: float, split: bool) -> None:
        fleet = endpoint(0, role=P), endpoint(1, role=D, requests=20)
        assert (plan(fleet, request(4000), lam=lam).prefill is not None) == split

    def test_the_plan_says_what_was_compared(self) -> None:
        fleet = endpoint(0, role=P), endpoint(1, role=D, requests=20)
        made = plan(fleet, request(4000))
        assert list(made.costs) == ["split", "whole"]
        # 4 s to compute it and 2 s of what it pushes out; the second leg, 1.3 GB at 25 GB/s and a step of 20 requests.
        assert made.costs["split"] == pytest.approx(6.0 + 0.01 + 4000 * KV_BYTES / 25e9 + 0.040, abs=1e-6)
        # The same two, what is added to half again its steps, and 20 requests' tenth of 4 s each.
        assert made.costs["whole"] == pytest.approx(6.0 + (1 + 4000 / 8192) * 0.020 + 8.0, abs=1e-6)
        assert list(plan(fleet, request(5)).costs) == ["whole"]
        assert not plan(fleet, request(4000), decide="threshold").costs


class TestWhatIsNotCompared:
    @pytest.mark.parametrize("word", ["n", "echo"])
    def test_what_is_indivisible(self, word: str) -> None:
        fleet = endpoint(0, role=P), endpoint(1, role=D, requests=20)
        assert plan(fleet, request(4000, indivisible=word)) == Plan.of(fleet[1], reason=word)

    def test_what_generates_nothing(self) -> None:
        fleet = endpoint(0, role=P), endpoint(1, role=D, requests=20)
        assert plan(fleet, request(4000, kind=Kind.EMBEDDING)).reason == "no-decode"

    @pytest.mark.parametrize("token", [math.nan, math.inf, -1.0])
    @pytest.mark.parametrize("who", [P, D])
    def test_where_a_cost_is_unknown_the_threshold_decides(self, token: float, who: Role) -> None:
        strange = Physics(prefill_token=token)
        fleet = (
            endpoint(0, role=P, cost=strange if who is P else None),
            endpoint(1, role=D, requests=20, cost=strange if who is D else None),
        )
        assert plan(fleet, request(THRESHOLD)) == Plan.of(fleet[1], prefill=fleet[0], reason="split")
        assert plan(fleet, request(THRESHOLD - 1)).reason == "short"

    def test_without_a_pair_the_threshold_says_what_was_missed(self) -> None:
        alone = endpoint(1, role=D, requests=20)
        assert plan((alone,), request(4000)) == Plan.of(alone, reason="no-prefill-endpoint")
        old = endpoint(0, role=P, version="1")
        assert plan((old, alone), request(4000)) == Plan.of(alone, reason="version")
        down = endpoint(0, role=P, up=False)
        assert plan((down, alone), request(4000)) == Plan.of(alone, reason="no-prefill-endpoint")
        with pytest.raises(NoEndpoint, match="prefill has none"):
            plan((down, alone), request(4000), strict=True)
        # No pair could have been cheaper.
        assert plan((down, alone), request(5), strict=True).reason == "cheaper-whole"

    def test_nobody_to_prefill_is_asked_where_none_could_be_cheaper(self) -> None:
        run = Profiles()
        plan((endpoint(0, role=P), endpoint(1, role=D)), request(10), run)
        assert run.asked == [("decode", [1])]

    def test_an_engine_that_serves_nothing_alone_only_has_its_pair_chosen(self) -> None:
        busy, idle, decode = endpoint(0, role=P, prefill_tokens=9000), endpoint(1, role=P), endpoint(2, role=D)
        made = plan((busy, idle, decode), request(10, indivisible="n"), connector="sglang")
        assert made == Plan.of(decode, prefill=idle, reason="split", connector="sglang")


class TestPairs:
    def test_are_compared_together(self) -> None:
        """The best to decode for itself has its only pair behind a long queue."""
        near = endpoint(0, role=P, labels={"zone": "a"}, prefill_tokens=50_000)
        far = endpoint(1, role=P, labels={"zone": "b"})
        first = endpoint(2, role=D, labels={"zone": "a"}, requests=50)
        second = endpoint(3, role=D, labels={"zone": "b"}, requests=60)
        made = plan((near, far, first, second), request(4000), same=("zone",))
        assert made == Plan.of(second, prefill=far, reason="split")

    def test_whoever_holds_the_prompt_prefills(self) -> None:
        fleet = endpoint(0, role=P), endpoint(1, role=P), endpoint(2, role=D, requests=40)
        assert plan(fleet, request(4000, held={1: 3000})).prefill is fleet[1]

    def test_whoever_holds_the_prompt_decodes(self) -> None:
        fleet = endpoint(0, role=P), endpoint(1, role=D, requests=40), endpoint(2, role=D, requests=40)
        made = plan(fleet, request(4000, held={2: 2000}), rate=1e9)
        assert (made.decode, made.reason) == (fleet[2], "split")

    def test_what_is_held_in_slower_tiers_is_worth_less(self) -> None:
        asked = request(8000)
        asked.matches = Matches({0: Match(storage=4000, expected_hit=4000), 1: Match(gpu=4000, expected_hit=4000)})
        fleet = endpoint(0, role=P), endpoint(1, role=P), endpoint(2, role=D, requests=40)
        assert plan(fleet, asked).prefill is fleet[1]

    def test_who_answers_as_well_is_held_up_by_a_prefill(self) -> None:
        both, only, decode = (
            endpoint(0, requests=10),
            endpoint(1, role=P, requests=10),
            endpoint(2, role=D, requests=40),
        )
        assert plan((both, only, decode), request(4000)).prefill is only

    def test_alone_is_whoever_is_cheapest_alone(self) -> None:
        fleet = endpoint(0, role=P), endpoint(1, role=D, requests=5), endpoint(2, role=D)
        assert plan(fleet, request(4000)) == Plan.of(fleet[2], reason="cheaper-whole")

    def test_at_a_tie_the_profiles_ranking_decides(self) -> None:
        fleet = [endpoint(0, role=P), endpoint(1, role=P), *(endpoint(slot, role=D, requests=20) for slot in (2, 3))]
        run = Profiles(decode=(3, 2), prefill=(1, 0))
        assert plan(fleet, request(4000), run) == Plan.of(fleet[3], prefill=fleet[1], reason="split")
        assert plan(fleet, request(10), run).decode is fleet[3]

    def test_of_the_best_few_only(self) -> None:
        fleet = [endpoint(0, role=P, prefill_tokens=1000), endpoint(1, role=P)]
        fleet += [endpoint(2, role=D, requests=60), endpoint(3, role=D, requests=50)]
        assert plan(fleet, request(4000)) == Plan.of(fleet[3], prefill=fleet[1], reason="split")
        assert plan(fleet, request(4000), best=1) == Plan.of(fleet[2], prefill=fleet[0], reason="split")

    def test_preferred_ones_go_first(self) -> None:
        decode = endpoint(2, role=D, labels={"rack": "7"}, requests=40)
        far, near = endpoint(0, role=P), endpoint(1, role=P, labels={"rack": "7"}, prefill_tokens=1000)
        assert plan((far, near, decode), request(4000), prefer=("rack",)).prefill is near
        near.engine.up = False
        assert plan((far, near, decode), request(4000), prefer=("rack",)).prefill is far

    def test_no_engine_hands_over_to_itself(self) -> None:
        one = endpoint(0, requests=20)
        ranks = one, endpoint(1, requests=20, engine=one.engine)
        assert plan(ranks, request(4000)).reason == "no-prefill-endpoint"
        other = endpoint(2)
        assert plan((*ranks, other), request(4000)).decode is other


LOADS = st.fixed_dictionaries(
    {
        "requests": st.integers(0, 60),
        "prefill_tokens": st.integers(0, 50_000),
        "kv_tokens": st.integers(0, 400_000),
        "foreign_requests": st.floats(0, 20),
    }
)
PHYSICS = st.builds(Physics, st.sampled_from([1e-5, 1e-4, 1e-3]), st.sampled_from([0.0, 1e-9, 1e-7]))
METRICS = st.builds(
    moved, st.sampled_from([0.0, 0.1, 50.0]), st.sampled_from([1e6, 1e9]), st.floats(1e-3, 20), st.floats(0, 1e5)
)
FLEETS = st.lists(
    st.tuples(st.sampled_from(Role), LOADS, PHYSICS, METRICS, st.integers(0, 20_000)), min_size=1, max_size=7
)


@examples(200)
@given(FLEETS, st.integers(1, 20_000), st.sampled_from([1e8, 25e9]))
def test_no_other_plan_would_have_cost_less(
    drawn: list[tuple[Role, dict[str, Any], Physics, EngineMetrics, int]], tokens: int, rate: float
) -> None:
    fleet = [
        endpoint(slot, role=role, cost=cost, metrics=metrics, **load)
        for slot, (role, load, cost, metrics, _) in enumerate(drawn)
    ]
    asked = request(tokens, held={slot: held for slot, (*_, held) in enumerate(drawn)})
    decoders = [one for one in fleet if one.role is not P]
    if not decoders:
        with pytest.raises(NoEndpoint):
            plan(fleet, asked, rate=rate)
        return
    price = costs(rate=rate)
    alone = [price.answering(asked, one, NOW).alone for one in decoders]
    pairs = [
        price.pair(price.computing(asked, prefill, NOW), price.answering(asked, decode, NOW))
        for decode in decoders
        for prefill in fleet
        if prefill.role is not D and prefill is not decode
    ]
    for decode in decoders:
        answering = price.answering(asked, decode, NOW)
        for prefill in fleet:
            assert price.pair(price.computing(asked, prefill, NOW), answering) >= price.at_least(answering)
    made = plan(fleet, asked, rate=rate)
    if made.prefill is None and made.reason != "cheaper-whole":
        assert not pairs
        assert made.reason in ("short", "no-prefill-endpoint")
        return
    answering = price.answering(asked, made.decode, NOW)
    cost = answering.alone if made.prefill is None else price.pair(price.computing(asked, made.prefill, NOW), answering)
    assert cost == min(alone + pairs)
    assert cost == next(iter(made.costs.values()))


@examples(200)
@given(LOADS, LOADS, PHYSICS, METRICS, st.integers(0, 5000), st.lists(st.integers(1, 40_000), min_size=2, max_size=6))
def test_a_longer_prompt_never_turns_a_split_whole(
    prefilling: dict[str, Any],
    decoding: dict[str, Any],
    cost: Physics,
    metrics: EngineMetrics,
    held: int,
    lengths: list[int],
) -> None:
    """On like hardware, where each token more costs less to move than it harms others where it is not moved."""
    decode = endpoint(1, role=D, cost=cost, metrics=metrics, **decoding)
    fleet = endpoint(0, role=P, cost=cost, **prefilling), decode
    lately = metrics.recent_transfers
    byte = max(lately.seconds / lately.bytes if lately.bytes else 0.0, 1 / DEFAULTS.rate)
    token = max(lately.bytes / lately.tokens if lately.tokens else 0.0, KV_BYTES)
    running = decoding["requests"] + decoding["foreign_requests"]
    assume(byte * token <= LAM * running * cost.prefill_token)
    reasons = [plan(fleet, request(held + new, held={1: held}), decide="cost").reason for new in sorted(lengths)]
    assert reasons == sorted(reasons)  # cheaper-whole before split


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({"threshold": -1}, "threshold must be at least 0 tokens"),
        ({"best": 0}, "best must be at least 1"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"kv_bytes": 0}, "kv_bytes must be at least 1"),
        ({"lam": -0.1}, "lam must be at least 0"),
        ({"leg": math.nan}, "leg must be at least 0"),
        ({"reuse": 1.1}, r"reuse must be in 0\.\.1"),
        ({"rate": 0.0}, "rate must be above 0"),
        ({"rate": math.inf}, "rate must be above 0"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(parameters: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        PrefillDecode.Parameters(**parameters)
