"""What one cost model learns, another hears: both are the same."""

from __future__ import annotations

from random import Random

import pytest

from gateway.fleet.load.cost import FittedCost
from gateway.fleet.load.lessons import ANSWER, NUMBERS, learn_answer
from gateway.fleet.settings import StartingCosts
from gateway.framework.fleet import Model


def test_who_hears_lessons_believes_what_who_learned_does():
    chance, (learner, hearer) = Random(3), (FittedCost(StartingCosts()) for _ in range(2))
    told = []
    learner.tell = lambda kind, numbers, model="": told.append((kind, numbers))
    for number in range(90):
        tokens, context, running, kv = (chance.randrange(1, 5000) for _ in range(4))
        if number % 3 == 0:
            ahead = chance.randrange(3000), chance.random() * 1e6
            seconds = 2 * learner.scalars.prefill_seconds(tokens, context)
            learner.learn_prefill(tokens, context, seconds, at=number, ahead=ahead, running=running, kv_tokens=kv)
        elif number % 3 == 1:
            learner.learn_step(running, kv, 0.5 * learner.scalars.step_seconds(running, kv), at=number)
        else:
            learner.learn_whole(tokens, context, running, kv, 20.0, 3.0 + chance.random(), at=number, ahead=(7, 8.0))
        learner.count_request()
    assert {kind for kind, _ in told} == NUMBERS.keys() - {ANSWER}
    for kind, numbers in told:
        assert len(numbers) == NUMBERS[kind]
        hearer.hear(kind, numbers)
    assert hearer.scalars == learner.scalars != FittedCost(StartingCosts()).scalars


def test_an_answer_teaches_what_it_shows():
    model = Model("m", expected_output=100.0)
    learn_answer(model, 0.0, 200.0)
    assert (model.event_tokens, model.expected_output) == (1.0, pytest.approx(105.0))
    learn_answer(model, 2.0, 0.0)
    assert (model.event_tokens, model.expected_output) == (pytest.approx(1.05), pytest.approx(105.0))
