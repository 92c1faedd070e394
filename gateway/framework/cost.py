"""What work costs on one engine, in seconds, and the time to a first token that follows from it: one formula for all.

    first token = overhead + queued + prefill + fetch + batch

    queued  = the prompts that are queued there, less what is done of them
    prefill = prefill_token * n + prefill_quadratic * n * (context + n / 2)       n new tokens behind context held ones
    fetch   = cpu_fetch * tokens held in the CPU's memory + storage_fetch * tokens held in storage
    batch   = (1 + (queued tokens + n) / step_tokens) * (step_request * running + kv_token * kv)

Prompts are computed in order, in steps of ``step_tokens``, and each step carries the running requests' next tokens with
it. That it reads the weights, too, is in ``overhead``: beside a long prompt's computing it does not show. A step in
which no prompt is computed takes ``step + step_request * running + kv_token * kv``. Pure.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple, Protocol, TypeAlias

from gateway.framework.match import Match

Sums: TypeAlias = tuple[float, int, float, float, float, float]
"""A load at one moment, ours and others' together: requests, ``prefill_tokens`` and ``prefill_attention`` as ``Load``
has them, the seconds of their computing that are done, and KV tokens; and the *prefill share*: of the last ``LATELY``
seconds, the part that prompts of ours take there which were booked then, as long as computing them is believed to take.
It fades, and is above 1 where more was booked than can be computed in that time. A plain tuple: one is made for each
candidate of each request."""


LATELY = 2.0
"""Seconds within which stalls add up. The grid of docs/benchmarks.md is the same with 3; with 20 it loses the gain."""

MOST_STALLED = 0.5
"""Of those seconds: an answer that is stalled for more of them misses its objective whatever comes. Without this bound
goodput falls by a tenth to a fifth where engines have more work than they can do; with 0.7 by half of that."""


def stall_seconds(prefill: float, running: float, share: float) -> float:
    """What computing a prompt for ``prefill`` seconds costs the ``running`` answers, in seconds of theirs.

    Each is stalled for so long. That weighs more where other prompts have taken a large ``share`` (0..) of the last
    seconds: an objective for the time between tokens bears one stall and breaks on the second. Long prompts would else
    gather where few requests run, since those that run there are long prompts' themselves.
    """
    return prefill * running * (1 + min(share, MOST_STALLED))


class FirstToken(NamedTuple):
    """The parts of a time to a first token. Seconds."""

    overhead: float
    queued: float
    prefill: float
    fetch: float
    batch: float

    @property
    def seconds(self) -> float:
        return sum(self)


class Scalars(NamedTuple):
    """A cost model in some figures, as they are fitted now. Seconds, but for ``step_tokens``.

    ``overhead``: what a first token takes beside its computing: network, tokenizing, the step that it waits for.
    ``step_request``, ``kv_token``: 0 for an endpoint of the role prefill, whose requests run in no batch.
    ``cpu_fetch``, ``storage_fetch``: a token, from below the GPU. ``step_tokens``: prompt tokens of one step.
    """

    prefill_token: float
    prefill_quadratic: float
    step: float
    step_request: float
    kv_token: float
    overhead: float
    cpu_fetch: float
    storage_fetch: float
    step_tokens: int

    def prefill_seconds(self, tokens: int, context: int = 0) -> float:
        """To compute ``tokens`` new prompt tokens behind ``context`` held ones, without queueing and steps."""
        if tokens <= 0:
            return 0.0
        return tokens * (self.prefill_token + self.prefill_quadratic * (max(0, context) + tokens / 2))

    def step_seconds(self, running: float, kv_tokens: float) -> float:
        """One step of a batch of ``running`` requests with ``kv_tokens`` resident."""
        return self.step + self.step_request * max(0.0, running) + self.kv_token * max(0.0, kv_tokens)

    def fetch_seconds(self, match: Match) -> float:
        """To bring to the GPU what of a prompt is held, but not there."""
        held = match.expected_hit
        if match.gpu >= held:
            return 0.0
        return self.cpu_fetch * min(match.cpu, held) + self.storage_fetch * min(match.storage, held)

    def first_token(self, sums: Sums, match: Match, prompt_tokens: int) -> FirstToken:
        """Of a prompt that is placed beside the load ``sums``, and is not in it yet."""
        running, waiting, attention, done, kv_tokens, _ = sums
        held = match.expected_hit
        new = prompt_tokens - held if prompt_tokens > held else 1
        queued = waiting * self.prefill_token + self.prefill_quadratic * attention - done
        steps = 1 + (waiting + new) / self.step_tokens
        # Not FirstToken(...), which is a call of Python more for each candidate that is compared so.
        parts = (
            self.overhead,
            queued if waiting and queued > 0 else 0.0,
            new * (self.prefill_token + self.prefill_quadratic * (prompt_tokens - new / 2)),
            self.fetch_seconds(match) if match.gpu < held else 0.0,
            steps * (self.step_request * running + self.kv_token * kv_tokens),
        )
        return tuple.__new__(FirstToken, parts)


class Rates(NamedTuple):
    """What one endpoint costs while neither its load nor its cost model changes: all that no request has a say in.

    The time to a first token of a prompt with ``new`` tokens to compute, and the cost of its answer's tokens:

        first token = fixed + waited + new * each + fetch
        each        = new_token + prefill_token + prefill_quadratic * (prompt - new / 2)
        waited      = queued - min((now - begun) * pace, most_done), at least 0
        answer      = output_token * tokens

    That is ``Scalars.first_token`` and ``Scalars.step_seconds`` of ``Load.sums``, sorted by what changes them. It is
    made once for each change of the load, and read once for each candidate of each request: as a plain tuple it is
    read without a call.

    ``until``: Clock.monotonic() from which it is wrong by time alone. ``running``: requests. ``waiting``: prompt tokens
    that are queued. ``queued``: their seconds, from ``begun`` on, of which ``pace`` seconds are done each second, up to
    ``most_done``. ``share``: the prefill share (see ``Sums``) at ``share_at``; at any later moment it is
    ``share * exp((share_at - now) / LATELY)``.
    """

    until: float
    fixed: float
    new_token: float
    output_token: float
    running: float
    prefill_token: float
    prefill_quadratic: float
    waiting: int
    queued: float
    begun: float
    pace: float
    most_done: float
    share: float
    share_at: float


STALE = Rates(-inf, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
"""Rates that are never valid."""


class CostModel(Protocol):
    """Seconds of engine time, per endpoint; started from a profile, fitted from what the gateway sees."""

    @property
    def scalars(self) -> Scalars:
        """As they are now."""
        ...
