from __future__ import annotations

import logging
from array import array
from pathlib import Path

import pytest

from gateway.framework import ChatInput, ManualClock, Observer, TextInput, TokenInput
from gateway.tokens import ModelTokens
from gateway.tokens.parity import BLIND, CHECKS, LEAST, PAUSE, RECOVERY, TRIED, WINDOW, Parity
from gateway.tokens.settings import ParitySettings, TokenSettings

IDS = array("I", [1, 2, 3])


class Told(Observer):
    """Keeps what is told of parity."""

    def __init__(self) -> None:
        self.trusted: list[bool] = []
        self.equal: list[bool] = []

    def parity(self, model: str, trusted: bool) -> None:
        self.trusted.append(trusted)

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


def counts(parity: Parity, *equal: bool, endpoint: str = "a") -> None:
    for one in equal:
        parity.counted(endpoint, 100, 100 if one else 101)


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
            counts(parity, False, endpoint="a")
            counts(parity, *[False] * (LEAST - 1), endpoint="b")
        (record,) = caplog.records
        assert "model m: its prompts are estimated from now on" in record.message
        assert "5 in 5" in record.message
        assert "most of them on b" in record.message
        assert "kvgate doctor" in record.message


class TestIds:
    def test_other_ids_of_the_same_number_are_told_apart(self, parity: Parity, told: Told) -> None:
        parity.rendered("a", IDS, [1, 2, 3])
        parity.rendered("a", IDS, [1, 2, 4])
        assert told.equal == [True, False]

    def test_they_are_lost_and_come_back(self, parity: Parity) -> None:
        for _ in range(LEAST):
            parity.rendered("a", IDS, [1, 2])
        assert not parity.trusted
        counts(parity, *[True] * WINDOW)
        assert not parity.trusted, "equal counts say nothing of ids"
        for _ in range(CHECKS):
            parity.rendered("a", IDS, [1, 2, 3])
        assert parity.trusted

    def test_without_a_sample_lost_ids_are_asked_for_again(self, parity: Parity, clock: ManualClock) -> None:
        for _ in range(LEAST):
            parity.rendered("a", IDS, [1, 2])
        for _ in range(CHECKS):
            assert parity.wants_ids(1.0)
            parity.rendered("a", IDS, [1, 2])
        assert not parity.wants_ids(1.0)
        clock.now = PAUSE
        assert parity.wants_ids(1.0)

    def test_a_sample_is_drawn(self) -> None:
        assert Parity("m", sample=0.1).wants_ids(0.05)
        assert not Parity("m", sample=0.1).wants_ids(0.1)
        assert not Parity("m").wants_ids(0.0)


class TestHits:
    def test_hits_out_of_nothing_are_a_doubt_and_no_verdict(self, parity: Parity) -> None:
        assert not parity.wants_ids(0.0)
        for _ in range(LEAST):
            parity.hit("a", 0, BLIND)
        assert parity.trusted
        assert parity.wants_ids(1.0)

    def test_doubted_ids_are_compared_some_times(self, parity: Parity, clock: ManualClock) -> None:
        for _ in range(LEAST):
            parity.hit("a", 0, BLIND)
        for _ in range(CHECKS):
            assert parity.wants_ids(1.0)
            parity.rendered("a", IDS, IDS.tolist())
        for _ in range(WINDOW):
            parity.hit("a", 0, BLIND)
        assert not parity.wants_ids(1.0), "not again so soon"
        clock.now = PAUSE
        parity.hit("a", 0, BLIND)
        assert parity.wants_ids(1.0)

    def test_doubted_ids_that_differ_are_lost(self, parity: Parity) -> None:
        for _ in range(LEAST):
            parity.hit("a", 0, BLIND)
        for _ in range(LEAST):
            parity.rendered("a", IDS, [1, 2, 4])
        assert not parity.trusted

    def test_what_was_evicted_is_no_doubt(self, parity: Parity) -> None:
        for _ in range(WINDOW):
            parity.hit("a", 5000, 0)
            parity.hit("a", 5000, BLIND)
            parity.hit("a", 0, BLIND - 1)
        assert not parity.wants_ids(1.0)


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
        exact = await tokens.tokenize(given)
        counts(parity, *[False] * LEAST)
        prompt = await tokens.tokenize(given)
        assert not prompt.exact
        assert prompt.why == "parity"
        assert prompt.own == exact.ids
        assert reasons.seen == [("m", "parity")]  # type: ignore[attr-defined]
        counts(parity, *[True] * WINDOW)
        assert await tokens.tokenize(given) == exact

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
    for place in range(10 * WINDOW):
        parity.counted(f"e{place}", 1, 1 if place % 2 else 2)
    assert all(len(window) <= WINDOW for window in parity._windows.values())


class TestIdsInsteadOfTexts:
    """An engine gets ours once it has made the same ones, and must go on making them."""

    def test_none_before_the_engine_has_shown_its_own(self, parity: Parity) -> None:
        assert not parity.wants_proof("a")
        assert not parity.vouches("a", 1.0)
        assert parity.wants_proof("a")
        assert not parity.wants_proof("b")

    def test_equal_ids_are_proof(self, parity: Parity) -> None:
        parity.vouches("a", 1.0)
        parity.rendered("a", IDS, IDS.tolist(), started=1.0)
        assert not parity.wants_proof("a")
        assert parity.vouches("a", 1.0)
        assert not parity.vouches("b", 1.0)

    def test_equal_counts_are_none(self, parity: Parity) -> None:
        counts(parity, *[True] * WINDOW)
        assert not parity.vouches("a", 1.0)

    def test_other_ids_are_none(self, parity: Parity) -> None:
        parity.vouches("a", 1.0)
        parity.rendered("a", IDS, [1, 2, 4], started=1.0)
        assert not parity.vouches("a", 1.0)
        assert parity.wants_proof("a")

    def test_a_new_process_has_to_show_its_own(self, parity: Parity) -> None:
        parity.rendered("a", IDS, IDS.tolist(), started=1.0)
        assert not parity.vouches("a", 2.0)
        assert parity.wants_proof("a")
        parity.rendered("a", IDS, IDS.tolist(), started=2.0)
        assert parity.vouches("a", 2.0)

    def test_some_prompts_still_go_as_their_texts(self, parity: Parity) -> None:
        parity.rendered("a", IDS, IDS.tolist(), started=None)
        went = [parity.vouches("a", None) for _ in range(3 * TRIED)]
        assert went.count(False) == 3
        assert not went[TRIED - 1]

    def test_a_comparison_in_between_does_not_put_that_off(self, parity: Parity) -> None:
        for _ in range(TRIED - 1):
            parity.rendered("a", IDS, IDS.tolist())
            assert parity.vouches("a", None)
        assert not parity.vouches("a", None)

    @pytest.mark.parametrize("how", ["count", "ids"])
    def test_a_difference_ends_it(self, parity: Parity, how: str) -> None:
        parity.rendered("a", IDS, IDS.tolist())
        parity.rendered("b", IDS, IDS.tolist())
        if how == "count":
            counts(parity, False)
        else:
            parity.rendered("a", IDS, [3])
        assert not parity.vouches("a", None)
        assert parity.vouches("b", None)

    def test_none_while_our_ids_are_not_trusted(self, parity: Parity) -> None:
        parity.rendered("b", IDS, IDS.tolist())
        counts(parity, *[False] * LEAST)
        assert not parity.trusted
        assert not parity.vouches("b", None)
        counts(parity, *[True] * RECOVERY)
        assert parity.vouches("b", None)
