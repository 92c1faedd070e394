"""Covers: gateway/tokens/parity.py, gateway/tokens/agreement.py."""

from __future__ import annotations

import logging
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import ManualClock
from gateway.core.observer import Observer
from gateway.core.prompt import ChatInput, TextInput, TokenInput
from gateway.tokens.agreement import CHECKS, LEAST, RECOVERY, WINDOW, Form
from gateway.tokens.parity import BLIND, PAUSE, TRIED, Parity
from gateway.tokens.settings import ParitySettings, TokenSettings
from gateway.tokens.tokenizer import ModelTokens
from tests.support.examples import examples

IDS = array("I", [1, 2, 3])


class Told(Observer):
    """Keeps what is told of parity."""

    def __init__(self) -> None:
        self.trusted: list[bool] = []
        self.equal: list[bool] = []
        self.agreeing: list[tuple[str, bool]] = []

    def parity(self, model: str, trusted: bool) -> None:
        self.trusted.append(trusted)

    def endpoint_parity(self, model: str, endpoint: str, agrees: bool) -> None:
        self.agreeing.append((endpoint, agrees))

    def ids_compared(self, model: str, equal: bool) -> None:
        self.equal.append(equal)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def parity(clock: ManualClock, told: Told) -> Parity:
    return Parity("m", clock, told)


def counts(parity: Parity, *equal: bool, endpoint: str = "a", form: Form = Form.CHAT) -> None:
    for one in equal:
        parity.compare_counts(endpoint, form, 100, 100 if one else 101)


class TestTheVerdict:
    def test_equal_counts_are_trusted(self, parity: Parity, told: Told) -> None:
        counts(parity, *[True] * 500)
        assert parity.trusted
        assert told.trusted == []

    def test_few_differences_prove_nothing(self, parity: Parity) -> None:
        counts(parity, *[False] * (LEAST - 1))
        assert parity.trusted

    def test_a_model_whose_counts_all_differ_is_lost_at_once(self, parity: Parity, told: Told) -> None:
        counts(parity, *[False] * LEAST)
        assert not parity.trusted
        assert told.trusted == [False]

    def test_a_tenth_that_differs_is_borne(self, parity: Parity) -> None:
        counts(parity, *[place % 10 > 0 for place in range(20 * WINDOW)])
        assert parity.trusted

    def test_a_third_that_differs_is_not(self, parity: Parity) -> None:
        counts(parity, *[place % 3 > 0 for place in range(WINDOW)])
        assert not parity.trusted

    def test_what_was_long_ago_does_not_count(self, parity: Parity) -> None:
        for _ in range(20):
            counts(parity, *[False] * (LEAST - 1), *[True] * WINDOW)
        assert parity.trusted

    def test_the_log_says_why_and_where_in_one_line(self, parity: Parity, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "kvgate.parity"):
            counts(parity, *[False] * LEAST, endpoint="a")
        (record,) = caplog.records
        assert "model m: its chats are estimated from now on" in record.message
        assert "a (it counted other tokens in 5 of 5 chats)" in record.message
        assert "kvgate doctor" in record.message


class TestOneOfSeveral:
    """An endpoint that differs costs itself its exactness, and the model nothing."""

    @pytest.fixture
    def parity(self, clock: ManualClock, told: Told) -> Parity:
        parity = Parity("m", clock, told)
        parity.members = lambda: ["a", "b", "c"]
        return parity

    def test_it_is_named_and_the_model_is_trusted(
        self, parity: Parity, told: Told, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "kvgate.parity"):
            counts(parity, *[False] * 3 * WINDOW, endpoint="b")
        assert parity.trusted
        assert parity.differing[Form.CHAT] == {"b"}
        assert told.trusted == []
        assert told.agreeing == [("b", False)]
        (record,) = caplog.records
        assert "chats on b are estimated from now on, and exact on the others" in record.message
        assert {name: list(map(str, why)) for name, why in parity.differences.items()} == {
            "b": ["it counted other tokens in 5 of 5 chats"]
        }

    def test_only_the_form_that_differs_is_lost(self, parity: Parity) -> None:
        """Another template, and the same tokenizer."""
        counts(parity, *[False] * LEAST, endpoint="b")
        counts(parity, *[True] * LEAST, endpoint="b", form=Form.TEXT)
        assert parity.differing[Form.TEXT] == frozenset()
        for name in ("a", "c"):
            counts(parity, *[False] * LEAST, endpoint=name)
        assert Form.CHAT in parity.distrusted
        assert Form.TEXT not in parity.distrusted

    def test_most_of_them_are_the_model(self, parity: Parity, told: Told) -> None:
        for name in ("b", "c"):
            counts(parity, *[False] * LEAST, endpoint=name)
        assert not parity.trusted
        assert "b (it counted" in str(parity.distrusted[Form.CHAT])
        assert "c (it counted" in str(parity.distrusted[Form.CHAT])
        counts(parity, *[True] * LEAST, endpoint="a")
        assert not parity.trusted, "two of three"
        counts(parity, *[True] * RECOVERY, endpoint="b")
        assert parity.trusted
        assert parity.differing[Form.CHAT] == {"c"}
        assert told.trusted == [False, True]

    def test_half_of_two_is_not_most(self, parity: Parity) -> None:
        parity.members = lambda: ["a", "b"]
        counts(parity, *[False] * LEAST, endpoint="b")
        assert parity.trusted
        counts(parity, *[False] * LEAST, endpoint="a")
        assert not parity.trusted

    def test_many_that_all_differ_are_noticed_after_two(self, parity: Parity) -> None:
        parity.members = lambda: [str(number) for number in range(100)]
        for name in ("1", "2"):
            counts(parity, *[False] * LEAST, endpoint=name)
        assert not parity.trusted

    def test_it_comes_back(self, parity: Parity, told: Told) -> None:
        counts(parity, *[False] * LEAST, *[True] * RECOVERY, endpoint="b")
        assert parity.differing[Form.CHAT] == frozenset()
        assert parity.differences == {}
        assert told.agreeing == [("b", False), ("b", True)]

    def test_one_that_has_gone_is_forgotten(self, parity: Parity) -> None:
        for name in ("b", "c"):
            counts(parity, *[False] * LEAST, endpoint=name)
        parity.members = lambda: ["a"]
        counts(parity, *[True] * LEAST, endpoint="a")
        assert parity.trusted
        assert parity.differing[Form.CHAT] == frozenset()

    def test_none_of_its_prompts_go_as_ids(self, parity: Parity) -> None:
        for _ in range(LEAST):
            parity.compare_ids("b", Form.CHAT, IDS, [7])
        parity.compare_ids("b", Form.TEXT, IDS, IDS.tolist())
        assert not parity.may_send_ids("b", None, Form.CHAT)
        assert parity.may_send_ids("b", None, Form.TEXT)


class TestIds:
    def test_other_ids_of_the_same_number_are_told_apart(self, parity: Parity, told: Told) -> None:
        parity.compare_ids("a", Form.CHAT, IDS, [1, 2, 3])
        parity.compare_ids("a", Form.CHAT, IDS, [1, 2, 4])
        assert told.equal == [True, False]

    def test_they_are_lost_and_come_back(self, parity: Parity) -> None:
        for _ in range(LEAST):
            parity.compare_ids("a", Form.CHAT, IDS, [1, 2])
        assert not parity.trusted
        counts(parity, *[True] * WINDOW)
        assert not parity.trusted, "equal counts say nothing of ids"
        for _ in range(CHECKS):
            parity.compare_ids("a", Form.CHAT, IDS, [1, 2, 3])
        assert parity.trusted

    def test_without_a_sample_lost_ids_are_asked_for_again(self, parity: Parity, clock: ManualClock) -> None:
        for _ in range(LEAST):
            parity.compare_ids("a", Form.CHAT, IDS, [1, 2])
        for _ in range(CHECKS):
            assert parity.wants_ids("a", Form.CHAT, 1.0)
            parity.compare_ids("a", Form.CHAT, IDS, [1, 2])
        assert not parity.wants_ids("a", Form.CHAT, 1.0)
        clock.now = PAUSE
        assert parity.wants_ids("a", Form.CHAT, 1.0)

    def test_a_sample_is_drawn(self) -> None:
        assert Parity("m", sample=0.1).wants_ids("a", Form.CHAT, 0.05)
        assert not Parity("m", sample=0.1).wants_ids("a", Form.CHAT, 0.1)
        assert not Parity("m").wants_ids("a", Form.CHAT, 0.0)


class TestHits:
    def test_hits_out_of_nothing_are_a_doubt_and_no_verdict(self, parity: Parity) -> None:
        assert not parity.wants_ids("a", Form.CHAT, 0.0)
        for _ in range(LEAST):
            parity.compare_hits("a", 0, BLIND)
        assert parity.trusted
        assert parity.wants_ids("a", Form.CHAT, 1.0)

    def test_doubted_ids_are_compared_some_times(self, parity: Parity, clock: ManualClock) -> None:
        for _ in range(LEAST):
            parity.compare_hits("a", 0, BLIND)
        for _ in range(CHECKS):
            assert parity.wants_ids("a", Form.CHAT, 1.0)
            parity.compare_ids("a", Form.CHAT, IDS, IDS.tolist())
        for _ in range(WINDOW):
            parity.compare_hits("a", 0, BLIND)
        assert not parity.wants_ids("a", Form.CHAT, 1.0), "not again so soon"
        clock.now = PAUSE
        parity.compare_hits("a", 0, BLIND)
        assert parity.wants_ids("a", Form.CHAT, 1.0)

    def test_doubted_ids_that_differ_are_lost(self, parity: Parity) -> None:
        for _ in range(LEAST):
            parity.compare_hits("a", 0, BLIND)
        for _ in range(LEAST):
            parity.compare_ids("a", Form.CHAT, IDS, [1, 2, 4])
        assert not parity.trusted

    def test_what_was_evicted_is_no_doubt(self, parity: Parity) -> None:
        for _ in range(WINDOW):
            parity.compare_hits("a", 5000, 0)
            parity.compare_hits("a", 5000, BLIND)
            parity.compare_hits("a", 0, BLIND - 1)
        assert not parity.wants_ids("a", Form.CHAT, 1.0)


class TestRecovery:
    def test_equal_counts_bring_trust_back(self, parity: Parity, told: Told) -> None:
        counts(parity, *[False] * LEAST)
        counts(parity, *[True] * (RECOVERY - 1))
        assert not parity.trusted
        counts(parity, True)
        assert parity.trusted
        assert told.trusted == [False, True]

    def test_a_difference_begins_the_count_anew(self, parity: Parity) -> None:
        counts(parity, *[False] * LEAST, *[True] * (RECOVERY - 1), False, *[True] * (RECOVERY - 1))
        assert not parity.trusted

    def test_it_can_be_lost_again(self, parity: Parity, told: Told) -> None:
        counts(parity, *[False] * LEAST, *[True] * WINDOW, *[False] * LEAST)
        assert told.trusted == [False, True, False]

    def test_time_alone_does_not(self, parity: Parity, clock: ManualClock) -> None:
        counts(parity, *[False] * LEAST)
        clock.now = 10 * PAUSE
        assert not parity.trusted


class TestThePrompts:
    """Of a model whose parity is lost."""

    @pytest.fixture
    async def tokens(self, folder: Path, parity: Parity, reasons: Observer) -> ModelTokens:
        tokens = ModelTokens(TokenSettings(tokenizer=str(folder)), "m", reasons, parity=parity)
        await tokens.load()
        return tokens

    async def test_they_are_exact_while_it_is_trusted(self, tokens: ModelTokens, told: Told) -> None:
        prompt = await tokens.tokenize(TextInput(("Hello there",)))
        assert prompt.exact
        assert prompt.own is prompt.ids
        assert told.trusted == [True], "the gauge begins when the tokenizer is there"

    @pytest.mark.parametrize(
        "given",
        [
            TextInput(("Hello there",)),
            TextInput(("Hello there " * 1000,)),
            ChatInput([{"role": "user", "content": "Hello"}], b'[{"role":"user","content":"Hello"}]'),
        ],
        ids=["short", "long", "chat"],
    )
    async def test_they_are_estimated_and_compared_all_the_same(
        self, tokens: ModelTokens, parity: Parity, reasons: Observer, given: TextInput | ChatInput
    ) -> None:
        exact, form = await tokens.tokenize(given), Form.CHAT if isinstance(given, ChatInput) else Form.TEXT
        counts(parity, *[False] * LEAST, form=form)
        prompt = await tokens.tokenize(given)
        assert not prompt.exact
        assert prompt.why == "parity"
        assert prompt.own == exact.ids
        assert reasons.seen == [("m", "parity")]  # type: ignore[attr-defined]
        counts(parity, *[True] * WINDOW, form=form)
        assert await tokens.tokenize(given) == exact

    async def test_where_one_endpoint_differs_they_name_it(self, tokens: ModelTokens, parity: Parity) -> None:
        parity.members = lambda: ["a", "b", "c"]
        counts(parity, *[False] * LEAST, endpoint="b", form=Form.TEXT)
        prompt = await tokens.tokenize(TextInput(("Hello there",)))
        assert prompt.exact
        assert prompt.differing == {"b"}
        assert (await tokens.tokenize(TokenInput(([1, 2, 3],)))).differing == frozenset()

    async def test_the_clients_own_ids_stay_exact(self, tokens: ModelTokens, parity: Parity) -> None:
        counts(parity, *[False] * LEAST)
        prompt = await tokens.tokenize(TokenInput(([1, 2, 3],)))
        assert prompt.exact
        assert prompt.own is None, "they are the engine's whatever our tokenizer is"

    async def test_several_prompts_are_not_compared(self, tokens: ModelTokens) -> None:
        prompt = await tokens.tokenize(TextInput(("Hello", "there")))
        assert prompt.own is None


@pytest.mark.parametrize("sample", [-0.1, 1.1])
def test_a_sample_is_a_share(sample: float) -> None:
    with pytest.raises(ValueError, match="sample must be in"):
        ParitySettings(sample)


def test_comparing_needs_no_memory_of_prompts(parity: Parity) -> None:
    """What is kept is bounded, whatever comes."""
    parity.members = lambda: ["e1", "e2"]
    for place in range(10 * WINDOW):
        for _ in range(LEAST):
            parity.compare_counts(f"e{place}", Form.CHAT, 1, 1 if place % 2 else 2)
    assert len(parity._agreements[Form.CHAT]) <= 2
    assert len(parity._checks) <= 2


class TestIdsInsteadOfTexts:
    """An engine gets ours once it has made the same ones, and must go on making them."""

    def test_none_before_the_engine_has_shown_its_own(self, parity: Parity) -> None:
        assert not parity.needs_proof("a")
        assert not parity.may_send_ids("a", 1.0, Form.CHAT)
        assert parity.needs_proof("a")
        assert not parity.needs_proof("b")

    def test_equal_ids_are_proof(self, parity: Parity) -> None:
        parity.may_send_ids("a", 1.0, Form.CHAT)
        parity.compare_ids("a", Form.CHAT, IDS, IDS.tolist(), started=1.0)
        assert not parity.needs_proof("a")
        assert parity.may_send_ids("a", 1.0, Form.CHAT)
        assert not parity.may_send_ids("b", 1.0, Form.CHAT)

    def test_equal_counts_are_none(self, parity: Parity) -> None:
        counts(parity, *[True] * WINDOW)
        assert not parity.may_send_ids("a", 1.0, Form.CHAT)

    def test_other_ids_are_none(self, parity: Parity) -> None:
        parity.may_send_ids("a", 1.0, Form.CHAT)
        parity.compare_ids("a", Form.CHAT, IDS, [1, 2, 4], started=1.0)
        assert not parity.may_send_ids("a", 1.0, Form.CHAT)
        assert parity.needs_proof("a")

    def test_a_new_process_has_to_show_its_own(self, parity: Parity) -> None:
        parity.compare_ids("a", Form.CHAT, IDS, IDS.tolist(), started=1.0)
        assert not parity.may_send_ids("a", 2.0, Form.CHAT)
        assert parity.needs_proof("a")
        parity.compare_ids("a", Form.CHAT, IDS, IDS.tolist(), started=2.0)
        assert parity.may_send_ids("a", 2.0, Form.CHAT)

    def test_some_prompts_still_go_as_their_texts(self, parity: Parity) -> None:
        parity.compare_ids("a", Form.CHAT, IDS, IDS.tolist(), started=None)
        went = [parity.may_send_ids("a", None, Form.CHAT) for _ in range(3 * TRIED)]
        assert went.count(False) == 3
        assert not went[TRIED - 1]

    def test_a_comparison_in_between_does_not_put_that_off(self, parity: Parity) -> None:
        for _ in range(TRIED - 1):
            parity.compare_ids("a", Form.CHAT, IDS, IDS.tolist())
            assert parity.may_send_ids("a", None, Form.CHAT)
        assert not parity.may_send_ids("a", None, Form.CHAT)

    @pytest.mark.parametrize("how", ["count", "ids"])
    def test_a_difference_ends_it(self, parity: Parity, how: str) -> None:
        parity.compare_ids("a", Form.CHAT, IDS, IDS.tolist())
        parity.compare_ids("b", Form.CHAT, IDS, IDS.tolist())
        if how == "count":
            counts(parity, False)
        else:
            parity.compare_ids("a", Form.CHAT, IDS, [3])
        assert not parity.may_send_ids("a", None, Form.CHAT)
        assert parity.may_send_ids("b", None, Form.CHAT)

    def test_none_while_our_ids_are_not_trusted(self, parity: Parity) -> None:
        parity.members = lambda: ["a", "b", "c"]
        parity.compare_ids("b", Form.CHAT, IDS, IDS.tolist())
        for name in ("a", "c"):
            counts(parity, *[False] * LEAST, endpoint=name)
        assert not parity.trusted
        assert not parity.may_send_ids("b", None, Form.CHAT)
        counts(parity, *[True] * RECOVERY)
        assert parity.may_send_ids("b", None, Form.CHAT)


STEPS = st.lists(
    st.tuples(st.sampled_from(["count", "ids", "hits", "send", "wait"]), st.sampled_from("ab"), st.booleans()),
    max_size=8,
)


@examples(300)
@given(STEPS, st.sampled_from([0.0, 0.5]))
def test_who_does_not_look_whether_ids_are_wanted_misses_none(
    steps: list[tuple[str, str, bool]], sample: float
) -> None:
    """A request looks at ``asks`` alone, which may be true in vain, but never false where an engine is to be asked."""
    clock = ManualClock()
    parity = Parity("m", clock, sample=sample)
    assert parity.asks is (sample > 0)
    for step, endpoint, equal in [one for one in steps for _ in range(LEAST)]:
        if step == "count":
            parity.compare_counts(endpoint, Form.CHAT, 1, 1 if equal else 2)
        elif step == "ids":
            parity.compare_ids(endpoint, Form.CHAT, IDS, IDS.tolist() if equal else [7])
        elif step == "hits":
            parity.compare_hits(endpoint, 5 if equal else 0, BLIND)
        elif step == "send":
            parity.may_send_ids(endpoint, None, Form.CHAT)
        else:
            clock.now += PAUSE / LEAST
        asks = parity.asks  # before it is asked whose: that is where a doubt may begin
        wanted = [parity.needs_proof(name) or parity.wants_ids(name, form, 0.0) for name in "ab" for form in Form]
        assert asks or not any(wanted)


def test_once_doubts_are_settled_no_request_looks_for_them_any_more(parity: Parity) -> None:
    for _ in range(LEAST):
        parity.compare_hits("a", 0, BLIND)
    for _ in range(CHECKS):
        assert parity.asks
        parity.compare_ids("a", Form.CHAT, IDS, IDS.tolist())
    assert not parity.asks
    parity.may_send_ids("b", None, Form.CHAT)
    assert parity.asks
    parity.compare_ids("b", Form.CHAT, IDS, IDS.tolist())
    assert not parity.asks
