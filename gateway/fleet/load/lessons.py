"""What answers teach, as the other processes of this gateway can learn it, too: each would else learn from its own
answers only, some of all, and several would believe different speeds of the same engines.

A lesson has a kind and numbers:

    prefill   tokens, context, seconds, at, tokens and attention ahead, running, kv_tokens
    step      running, kv_tokens, seconds, at
    whole     tokens, context, running, kv_tokens, steps, seconds, at, tokens and attention ahead
    request
    answer    tokens per event, tokens

The first three are the arguments of ``FittedCost.learn_prefill`` and so on, ``request`` is ``count_request``, and
``answer`` is ``learn_answer``.
"""

from __future__ import annotations

from typing import Protocol

from gateway.framework.fleet import Model

PREFILL, STEP, WHOLE, REQUEST, ANSWER = "prefill", "step", "whole", "request", "answer"

NUMBERS = {PREFILL: 8, STEP: 4, WHOLE: 9, REQUEST: 0, ANSWER: 2}
"""How many there are in a lesson of each kind."""

LEARNING_RATE = 0.05
"""Weight of one answer in a model's expected output: the last 20 answers weigh about two thirds."""


class Tell(Protocol):
    """Tells the others a lesson of one engine core. ``model``: the name of the answer's model."""

    def __call__(self, kind: str, numbers: tuple[float, ...], model: str = "", /) -> object: ...


def learn_answer(model: Model, per_event: float, output: float) -> None:
    """Of an answer: output tokens in one event of its stream, and in the whole; 0 where that teaches nothing."""
    if per_event:
        model.event_tokens += LEARNING_RATE * (per_event - model.event_tokens)
    if output:
        model.expected_output += LEARNING_RATE * (output - model.expected_output)
