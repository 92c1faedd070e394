"""The prefill leg of a request for vLLM: the client's own, to be answered with one token and at once."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.api.body import JsonBody
from gateway.framework import Kind

LIMITS: Mapping[Kind, tuple[str, ...]] = {
    Kind.CHAT: ("max_tokens", "max_completion_tokens"),
    Kind.COMPLETION: ("max_tokens",),
    Kind.RESPONSES: ("max_output_tokens",),
    Kind.MESSAGES: ("max_tokens",),
}
"""Where each kind limits its output."""

DROPPED = ("stream_options", "min_tokens", "logprobs", "top_logprobs", "logprob_token_ids", "return_token_ids")
"""``stream_options`` is refused without ``stream``, ``min_tokens`` above the limit, and ``logprob_token_ids`` without
``logprobs``; probabilities are work for nothing, whose first use took a real engine 24 s; nobody reads the prompt's
ids."""


def one_token(body: JsonBody, kind: Kind) -> JsonBody:
    """A copy of ``body`` that asks for one token, unstreamed: a streamed answer would not hold the KV's parameters."""
    leg = body.copy()
    leg.set("stream", False)
    for name in LIMITS[kind]:
        leg.set(name, 1)
    for name in DROPPED:
        leg.drop(name)
    if kind is Kind.RESPONSES:
        leg.drop("include")  # may ask for the probabilities dropped above
        leg.set("store", False)  # else the engine would keep an answer of one token for ever
    return leg
