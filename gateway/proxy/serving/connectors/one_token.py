"""The prefill leg of a request for vLLM: the client's own, to be answered with one token and at once."""

from __future__ import annotations

from gateway.api.body import JsonBody
from gateway.api.parse import LIMIT_FIELDS
from gateway.framework import Kind

DROPPED = ("stream_options", "min_tokens", "logprobs", "top_logprobs", "logprob_token_ids", "return_token_ids")
"""``stream_options`` is refused without ``stream``, ``min_tokens`` above the limit, and ``logprob_token_ids`` without
``logprobs``; probabilities are work for nothing, whose first use took a real engine 24 s; nobody reads the prompt's
ids."""


def one_token(body: JsonBody, kind: Kind) -> JsonBody:
    """A copy of ``body`` that asks for one token, unstreamed: a streamed answer would not hold the KV's parameters."""
    leg = body.copy()
    leg.set("stream", False)
    for name in LIMIT_FIELDS[kind]:
        leg.set(name, 1)
    for name in DROPPED:
        leg.drop(name)
    if kind is Kind.RESPONSES:
        leg.drop("include")  # may ask for the probabilities dropped above
        leg.set("store", False)  # else the engine would keep an answer of one token for ever
    return leg
