"""The order ``fair-tokens``.

What it does
    As ``fair-cost``, but tenants are charged for tokens:

        prompt * prompt tokens + output * output tokens

    Cached prompt tokens count in full. The output is charged as expected, and corrected when the answer has ended.

    Source: the weights and the cost of VTC (Sheng et al., OSDI 2024), with the tags of start-time fair queueing in the
    place of its counters, so that a tenant that comes back gains nothing by having been away.

Scheduling intent
    Shares in a unit that tenants can count, and that is often paid for. It is not what they take from each other: who
    has long cached prompts waits far longer than by ``fair-cost``.

Inputs
    ``late``, ``arrived`` and ``slot`` of what waits; ``band``, ``tenant``, ``prompt_tokens``, ``expected_output`` and
    ``kind`` of the request.

Parameters
    ``prompt`` (default 1.0): weight of a prompt token.
    ``output`` (default 2.0): weight of an output token.

Example
    ``plugins: [{name: fair, type: fair-tokens, parameters: {output: 4.0}}]``
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.framework import GENERATES, Context, Waiting
from queues.start_time import StartTimeOrder


class FairTokens(StartTimeOrder):
    """By weighted tokens."""

    @dataclass(frozen=True, slots=True)
    class Parameters:
        prompt: float = 1.0
        output: float = 2.0

        def __post_init__(self) -> None:
            for name in ("prompt", "output"):
                if not getattr(self, name) >= 0:
                    raise ValueError(f"{name} must be at least 0")
            if self.prompt == self.output == 0:
                raise ValueError("prompt and output must not both be 0: nothing would be charged")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        super().__init__()
        self._prompt = parameters.prompt
        self._output = parameters.output

    def charge(self, waiting: Waiting) -> float:
        request = waiting.request
        return self._tokens(waiting, request.expected_output if request.kind in GENERATES else 0.0)

    def spent(self, waiting: Waiting, seconds: float, output: float) -> float:
        return self._tokens(waiting, output)

    def _tokens(self, waiting: Waiting, output: float) -> float:
        return self._prompt * waiting.request.prompt_tokens + self._output * output
