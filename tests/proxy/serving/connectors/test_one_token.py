"""The prefill leg asks for one token of the very prompt, in each dialect."""

from __future__ import annotations

import pytest

from gateway.framework import Kind
from gateway.proxy.serving.connectors.one_token import one_token


@pytest.mark.parametrize(
    ("kind", "limits"),
    [
        (Kind.CHAT, {"max_tokens": 1, "max_completion_tokens": 1}),
        (Kind.COMPLETION, {"max_tokens": 1}),
        (Kind.RESPONSES, {"max_output_tokens": 1, "store": False}),
        (Kind.MESSAGES, {"max_tokens": 1}),
    ],
)
def test_what_is_left_of_a_request(kind, limits, make_body, read):
    kept = {"messages": [{"role": "user", "content": "x"}], "temperature": 0.5, "tools": [], "seed": 3}
    dropped = {
        "stream_options": {"include_usage": True},
        "min_tokens": 5,
        "logprobs": True,
        "top_logprobs": 3,
        "logprob_token_ids": [1, 2],
        "return_token_ids": True,
    }
    asked = {"stream": True, "max_tokens": 200, "max_completion_tokens": 100, "max_output_tokens": 9}
    body = make_body(**kept, **dropped, **asked)
    leg = read(one_token(body, kind))
    assert leg == {"model": "sim", **kept, **asked, "stream": False, **limits}
    assert read(body) == {"model": "sim", **kept, **dropped, **asked}, "the client's own body stays as it was"


def test_responses_do_not_ask_for_what_was_dropped(make_body, read):
    leg = one_token(make_body(input="x", include=["message.output_text.logprobs"], store=True), Kind.RESPONSES)
    assert "include" not in read(leg)
    assert read(leg)["store"] is False


def test_the_prompts_bytes_are_the_clients(make_body):
    leg = one_token(make_body(prompt="a"), Kind.COMPLETION)
    assert b'"prompt":"a"' in leg.encode("sim")
