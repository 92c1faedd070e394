from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.build import build_scheduler
from gateway.config.load import loads
from gateway.config.registry import discover
from gateway.errors import NoEndpoint
from gateway.framework import Endpoint, Kind, Plan, Request, Role
from gateway.framework.fleet import Model
from gateway.scheduling.prefill_decode import THRESHOLD, PrefillDecode
from gateway.scheduling.trace import Trace
from tests.support.candidates import context, endpoint, request
from tests.support.examples import examples

P, D, BOTH = Role.PREFILL, Role.DECODE, Role.BOTH


class Profiles:
    """``run``: takes the first that is up, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[int]]] = []

    def __call__(self, name: str, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]:
        self.asked.append((name, [one.slot for one in endpoints]))
        if not (up := [one for one in endpoints if one.engine.up]):
            raise NoEndpoint(f"{name} has none")
        return up


def plan(
    endpoints: Sequence[Endpoint], asked: Request | None = None, run: Profiles | None = None, **parameters: Any
) -> Plan:
    handler = PrefillDecode(PrefillDecode.Parameters(**({"decide": "threshold"} | parameters)), context())
    return handler.plan(asked or request(), endpoints, run or Profiles())


def test_a_long_prompt_is_computed_by_one_and_answered_by_another() -> None:
    prefill, decode, run = endpoint(0, role=P), endpoint(1, role=D), Profiles()
    assert plan((prefill, decode), run=run) == Plan.of(
        decode, prefill=prefill, reason="split", connector="nixl", strict=False
    )
    assert run.asked == [("decode", [1]), ("prefill", [0])]


def test_the_plan_says_how_the_kv_is_moved() -> None:
    fleet = endpoint(0, role=P), endpoint(1, role=D)
    made = plan(fleet, connector="mooncake", strict=True)
    assert (made.connector, made.strict) == ("mooncake", True)


def test_the_profiles_are_those_named() -> None:
    run = Profiles()
    plan((endpoint(0, role=P), endpoint(1, role=D)), run=run, prefill="far", decode="near")
    assert [name for name, _ in run.asked] == ["near", "far"]
    handler = PrefillDecode(PrefillDecode.Parameters(prefill="far", decode="near"), context())
    assert set(handler.profiles) == {"far", "near"}


@pytest.mark.parametrize(
    ("tokens", "held", "threshold", "reason"),
    [
        (THRESHOLD, 0, THRESHOLD, "split"),
        (THRESHOLD - 1, 0, THRESHOLD, "short"),
        (10_000, 10_000 - THRESHOLD, THRESHOLD, "split"),
        (10_000, 10_001 - THRESHOLD, THRESHOLD, "short"),
        (10_000, 10_000, 1, "split"),
        (10_000, 10_000, 2, "short"),
        (10_000, 10_000, 0, "split"),
        (1, 0, 0, "split"),
    ],
)
def test_what_the_decode_endpoint_holds_does_not_count(tokens: int, held: int, threshold: int, reason: str) -> None:
    fleet = endpoint(0, role=P), endpoint(1, role=D)
    made = plan(fleet, request(tokens, held={1: held, 0: 0}), threshold=threshold)
    assert made.reason == reason
    assert (made.prefill is None) == (reason == "short")


def test_what_the_prefill_endpoint_holds_makes_no_difference_to_whether() -> None:
    fleet = endpoint(0, role=P), endpoint(1, role=D)
    assert plan(fleet, request(1000, held={0: 999})).reason == "split"


@pytest.mark.parametrize("word", ["n", "beam-search", "echo", "several-prompts", "previous-response"])
def test_what_is_indivisible_stays_whole_and_its_word_is_the_reason(word: str) -> None:
    fleet = endpoint(0, role=P), endpoint(1, role=D)
    assert plan(fleet, request(100_000, indivisible=word), threshold=0) == Plan.of(fleet[1], reason=word)


@pytest.mark.parametrize("kind", [Kind.EMBEDDING, Kind.RERANK, Kind.SCORE, Kind.TOKENIZE, Kind.TRANSCRIPTION])
@pytest.mark.parametrize("connector", ["nixl", "mooncake", "sglang", "shared-storage"])
def test_what_generates_nothing_stays_whole(kind: Kind, connector: str) -> None:
    fleet = endpoint(0, role=P), endpoint(1, role=D)
    asked = request(100_000, kind=kind, indivisible="n")
    assert plan(fleet, asked, connector=connector, strict=True) == Plan.of(fleet[1], reason="no-decode")


def test_what_generates_is_never_whole_on_engines_that_serve_nothing_alone() -> None:
    fleet = endpoint(0, role=P), endpoint(1, role=D)
    for asked in (request(1), request(100_000, indivisible="n"), request(1000, held={1: 1000})):
        assert plan(fleet, asked, connector="sglang") == Plan.of(
            fleet[1], prefill=fleet[0], reason="split", connector="sglang"
        )


@pytest.mark.parametrize("kind", [Kind.CHAT, Kind.COMPLETION, Kind.RESPONSES, Kind.MESSAGES])
def test_what_generates_is_split(kind: Kind) -> None:
    assert plan((endpoint(0, role=P), endpoint(1, role=D)), request(1000, kind=kind)).reason == "split"


class TestRoles:
    """They hold even where the profiles have no filter for them, as ``Profiles`` has none."""

    def test_nothing_is_answered_by_who_only_prefills(self) -> None:
        with pytest.raises(NoEndpoint, match="decode has none"):
            plan((endpoint(0, role=P), endpoint(1, role=P)))

    def test_nothing_is_prefilled_by_who_only_decodes(self) -> None:
        fleet = endpoint(0, role=D), endpoint(1, role=D)
        assert plan(fleet) == Plan.of(fleet[0], reason="no-prefill-endpoint")

    def test_who_does_both_may_do_either(self) -> None:
        fleet = endpoint(0, role=BOTH), endpoint(1, role=BOTH)
        assert plan(fleet) == Plan.of(fleet[0], prefill=fleet[1], reason="split")

    def test_no_endpoint_hands_over_to_itself(self) -> None:
        only = endpoint(0, role=BOTH)
        assert plan((only,)) == Plan.of(only, reason="no-prefill-endpoint")

    def test_ranks_of_one_engine_do_not_pair(self) -> None:
        one = endpoint(0, role=BOTH)
        other = endpoint(1, role=BOTH, engine=one.engine)
        assert plan((one, other)) == Plan.of(one, reason="no-prefill-endpoint")


class TestPairs:
    @pytest.mark.parametrize(
        ("prefill", "decode", "reason"),
        [
            ("0.32.0", "0.32.0", "split"),
            (None, None, "split"),
            ("0.31.0", "0.32.0", "version"),
            ("0.32.0+cpu", "0.32.0", "version"),
            (None, "0.32.0", "version"),
            ("0.32.0", None, "version"),
        ],
    )
    def test_of_one_version_only(self, prefill: str | None, decode: str | None, reason: str) -> None:
        fleet = endpoint(0, role=P, version=prefill), endpoint(1, role=D, version=decode)
        others = {"prefill": fleet[0]} if reason == "split" else {}
        assert plan(fleet) == Plan.of(fleet[1], reason=reason, **others)

    def test_one_of_the_same_version_is_enough(self) -> None:
        old, new, decode = endpoint(0, role=P, version="1"), endpoint(1, role=P, version="2"), endpoint(2, role=D)
        decode.engine.version = "2"
        assert plan((old, new, decode)).prefill is new

    def test_all_required_labels_must_be_equal(self) -> None:
        decode = endpoint(0, role=D, labels={"zone": "a", "rail": "1"})
        other = endpoint(1, role=P, labels={"zone": "a", "rail": "2"})
        here = endpoint(2, role=P, labels={"zone": "a", "rail": "1", "rack": "7"})
        assert plan((decode, other, here), same=("zone", "rail")).prefill is here
        assert plan((decode, other), same=("zone", "rail")) == Plan.of(decode, reason="no-prefill-endpoint")
        assert plan((decode, other), same=("zone",)).prefill is other

    def test_who_lacks_a_label_agrees_with_who_lacks_it_too(self) -> None:
        bare, labelled = endpoint(0, role=P), endpoint(1, role=P, labels={"zone": "a"})
        assert plan((bare, labelled, endpoint(2, role=D)), same=("zone",)).prefill is bare
        assert plan((labelled, endpoint(2, role=D)), same=("zone",)).reason == "no-prefill-endpoint"

    def test_another_version_is_the_reason_only_where_the_labels_would_pair(self) -> None:
        decode = endpoint(0, role=D, labels={"zone": "a"}, version="2")
        far = endpoint(1, role=P, labels={"zone": "b"}, version="2")
        old = endpoint(2, role=P, labels={"zone": "a"}, version="1")
        assert plan((decode, far), same=("zone",)).reason == "no-prefill-endpoint"
        assert plan((decode, far, old), same=("zone",)).reason == "version"

    def test_preferred_labels_decide_where_any_agree(self) -> None:
        decode = endpoint(0, role=D, labels={"rack": "7"})
        far, near = endpoint(1, role=P, labels={"rack": "8"}), endpoint(2, role=P, labels={"rack": "7"})
        run = Profiles()
        assert plan((decode, far, near), run=run, prefer=("rack",)).prefill is near
        assert run.asked[1:] == [("prefill", [2])]
        assert plan((decode, far), prefer=("rack",)).prefill is far

    def test_a_preferred_one_that_is_out_does_not_cost_the_split(self) -> None:
        decode = endpoint(0, role=D, labels={"rack": "7"})
        far, near = endpoint(1, role=P, labels={"rack": "8"}), endpoint(2, role=P, labels={"rack": "7"}, up=False)
        for strict in (False, True):
            run = Profiles()
            assert plan((decode, far, near), run=run, prefer=("rack",), strict=strict).prefill is far
            assert run.asked[1:] == [("prefill", [2]), ("prefill", [1, 2])]


class TestNobodyToPrefill:
    def test_the_decode_endpoint_does_all_of_it(self) -> None:
        fleet, run = (endpoint(0, role=P, up=False), endpoint(1, role=D)), Profiles()
        assert plan(fleet, run=run) == Plan.of(fleet[1], reason="no-prefill-endpoint")
        assert run.asked == [("decode", [1]), ("prefill", [0])]

    def test_strictly_it_is_an_error(self) -> None:
        with pytest.raises(NoEndpoint, match="prefill has none"):
            plan((endpoint(0, role=P, up=False), endpoint(1, role=D)), strict=True)
        with pytest.raises(NoEndpoint, match=r"another engine of the same version and the same zone$"):
            plan((endpoint(0, role=P, version="1"), endpoint(1, role=D)), strict=True, same=("zone",))

    def test_strictly_what_need_not_be_split_is_none(self) -> None:
        assert plan((endpoint(1, role=D),), request(10), strict=True).reason == "short"
        assert plan((endpoint(1, role=D),), request(1000, indivisible="n"), strict=True).reason == "n"

    def test_what_never_stays_whole_is_an_error(self) -> None:
        with pytest.raises(NoEndpoint, match="prefill has none"):
            plan((endpoint(0, role=P, up=False), endpoint(1, role=D)), request(10, indivisible="n"), connector="sglang")

    def test_nobody_to_decode_is_an_error_always(self) -> None:
        with pytest.raises(NoEndpoint, match="decode has none"):
            plan((endpoint(0, role=P), endpoint(1, role=D, up=False)))


@pytest.mark.parametrize("parameters", [{"strict": True}, {"connector": "sglang"}], ids=["strict", "sglang"])
class TestTheBestToDecodeHasNoPair:
    """Where it must not serve the request whole, another endpoint that has one does."""

    def test_of_its_version(self, parameters: dict[str, Any]) -> None:
        new, old, prefill = endpoint(0, role=D, version="2"), endpoint(1, role=D, version="1"), endpoint(2, role=P)
        prefill.engine.version, run = "1", Profiles()
        made = plan((new, old, prefill), run=run, **parameters)
        assert (made.decode, made.prefill, made.reason) == (old, prefill, "split")
        assert run.asked == [("decode", [0, 1]), ("decode", [1]), ("prefill", [2])]

    def test_with_its_labels(self, parameters: dict[str, Any]) -> None:
        fleet = [endpoint(slot, role=D, labels={"zone": zone}) for slot, zone in enumerate("aab")]
        prefill, run = endpoint(3, role=P, labels={"zone": "b"}), Profiles()
        made = plan((*fleet, prefill), run=run, same=("zone",), **parameters)
        assert (made.decode, made.prefill) == (fleet[2], prefill)
        assert run.asked == [("decode", [0, 1, 2]), ("decode", [2]), ("prefill", [3])]

    def test_that_is_usable(self, parameters: dict[str, Any]) -> None:
        decode = [endpoint(slot, role=D, labels={"zone": zone}) for slot, zone in enumerate("aab")]
        down = endpoint(3, role=P, labels={"zone": "a"}, up=False)
        prefill, run = endpoint(4, role=P, labels={"zone": "b"}), Profiles()
        made = plan((*decode, down, prefill), run=run, same=("zone",), **parameters)
        assert (made.decode, made.prefill) == (decode[2], prefill)
        assert run.asked == [("decode", [0, 1, 2]), ("prefill", [3]), ("decode", [2]), ("prefill", [4])]

    def test_on_another_engine(self, parameters: dict[str, Any]) -> None:
        both = endpoint(0, role=BOTH)
        decode, run = endpoint(1, role=D), Profiles()
        made = plan((both, decode), run=run, **parameters)
        assert (made.decode, made.prefill) == (decode, both)

    def test_and_nobody_else_has(self, parameters: dict[str, Any]) -> None:
        decode = [endpoint(slot, role=D, labels={"zone": zone}) for slot, zone in enumerate("ab")]
        down = [endpoint(slot, role=P, labels={"zone": zone}, up=False) for slot, zone in ((2, "a"), (3, "b"))]
        with pytest.raises(
            NoEndpoint, match=r"none of the 2 that may decode has .* the same zone \(prefill has none\)"
        ):
            plan((*decode, *down), same=("zone",), **parameters)

    def test_and_who_has_is_down(self, parameters: dict[str, Any]) -> None:
        alone, down = endpoint(0, role=D, version="2"), endpoint(1, role=D, up=False)
        with pytest.raises(NoEndpoint, match="none of the 2 that may decode has"):
            plan((alone, down, endpoint(2, role=P)), **parameters)


def test_strictly_another_that_need_not_be_split_serves_it_whole() -> None:
    new, old, prefill = endpoint(0, role=D, version="2"), endpoint(1, role=D), endpoint(2, role=P)
    assert plan((new, old, prefill), request(1000, held={1: 900}), strict=True) == Plan.of(old, reason="short")


INSTALLED = discover()
"""Once: it reads a file of every installed distribution."""


def scheduled(fleet: Sequence[Endpoint], asked: Request, trace: Trace | None = None, **parameters: Any) -> Plan:
    """By the default profiles, as they are wired, and by the threshold."""
    text = "models: [{name: m, handler: h, endpoints: [{url: 'http://a:1'}]}]\n"
    given = ", ".join(f"{name}: {value}" for name, value in ({"decide": "threshold"} | parameters).items())
    config = loads(f"{text}handlers: [{{name: h, type: prefill-decode, parameters: {{{given}}}}}]\n", {})
    return build_scheduler(config, context, INSTALLED).schedule(asked, fleet, trace)


LONG = {"model": Model(name="m", handler="h")}


def test_by_default_the_idle_ones_are_chosen_on_either_side() -> None:
    fleet = (
        endpoint(0, role=P, requests=3, prefill_tokens=20_000),
        endpoint(1, role=P),
        endpoint(2, role=D, requests=30, kv_tokens=60_000),
        endpoint(3, role=D),
        endpoint(4, role=D, up=False),
    )
    trace = Trace({})
    made = scheduled(fleet, request(4000, **LONG), trace)
    assert made == Plan.of(fleet[3], prefill=fleet[1], reason="split")
    assert [run.profile for run in trace.runs] == ["decode", "prefill"]


def test_by_default_a_next_turn_returns_to_its_history_and_needs_no_second_leg() -> None:
    fleet = endpoint(0, role=P), endpoint(1, role=D, requests=4, kv_tokens=20_000), endpoint(2, role=D)
    assert scheduled(fleet, request(4000, held={1: 3800}, **LONG)) == Plan.of(fleet[1], reason="short")


def test_by_default_a_prefix_does_not_draw_all_to_a_full_endpoint() -> None:
    fleet = endpoint(0, role=P), endpoint(1, role=D, requests=100, kv_tokens=400_000), endpoint(2, role=D)
    assert scheduled(fleet, request(4000, held={1: 2000}, **LONG)).decode is fleet[2]


ENDPOINTS = st.lists(
    st.tuples(
        st.sampled_from(Role),
        st.sampled_from([None, "0.31", "0.32"]),
        st.fixed_dictionaries({}, optional={"zone": st.sampled_from("ab"), "rack": st.sampled_from("12")}),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@examples(150)
@given(
    ENDPOINTS,
    st.sampled_from([0, 200, 512]),
    st.sampled_from([[], ["zone"], ["zone", "rack"]]),
    st.sampled_from([[], ["rack"]]),
    st.integers(1, 2000),
    st.booleans(),
    st.sampled_from(["nixl", "sglang"]),
)
def test_whatever_the_fleet_a_plan_pairs_by_the_rules(
    drawn: list[tuple[Role, str | None, dict[str, str], bool, bool]],
    threshold: int,
    same: list[str],
    prefer: list[str],
    tokens: int,
    strict: bool,
    connector: str,
) -> None:
    fleet: list[Endpoint] = []
    for slot, (role, version, labels, up, rank) in enumerate(drawn):
        engine = fleet[-1].engine if rank and fleet else None
        fleet.append(endpoint(slot, role=role, labels=labels, version=version, up=up, engine=engine))
    able = [one for one in fleet if one.engine.up and one.role is not P]
    parameters = {"threshold": threshold, "same": same, "prefer": prefer, "strict": str(strict).lower()}

    def pairs(decode: Endpoint) -> list[Endpoint]:
        return [
            one
            for one in fleet
            if one.engine.up
            and one.role is not D
            and one.engine is not decode.engine
            and one.engine.version == decode.engine.version
            and all(one.labels.get(label) == decode.labels.get(label) for label in same)
        ]

    short = tokens < threshold and connector != "sglang"
    must = (strict or connector == "sglang") and not short
    try:
        made = scheduled(fleet, request(tokens, **LONG), connector=connector, **parameters)
    except NoEndpoint:
        assert not able or (must and not any(pairs(one) for one in able))
        return
    decode, prefill = made.decode, made.prefill
    assert decode in able
    assert (made.reason == "split") == (prefill is not None)
    paired = pairs(decode)
    if prefill is None:
        assert made.reason in ("short", "version", "no-prefill-endpoint")
        assert short if made.reason == "short" else not (paired or must)
        return
    assert not short
    assert prefill in paired
    wished = [one for one in paired if all(one.labels.get(k) == decode.labels.get(k) for k in prefer)]
    assert prefill in (wished or paired)
    assert (made.strict, made.connector) == (strict, connector)


def test_a_threshold_is_not_negative() -> None:
    with pytest.raises(ValueError, match="threshold must be at least 0"):
        PrefillDecode.Parameters(threshold=-1)
