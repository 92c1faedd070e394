from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.parse import parse
from gateway.api.routes import ROUTES
from gateway.api.settings import PassThroughSettings

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MINIMAL = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"prompt": "hi"},
    RESPONSES: {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
}
FUNCTION = {"type": "function", "name": "f", "parameters": {}}


def word(path: str, body: str | dict[str, object]) -> str:
    raw = body.encode() if isinstance(body, str) else json.dumps({**MINIMAL[path], **body}).encode()
    return parse(ROUTES[path], raw, "application/json", PassThroughSettings()).indivisible


@pytest.mark.parametrize("path", MINIMAL)
def test_a_plain_request_may_be_split(path: str) -> None:
    assert word(path, {"model": "m", "stream": True, "temperature": 0.5}) == ""


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (CHAT, {"n": 2}, "n"),
        (COMPLETIONS, {"best_of": 3}, "n"),
        (CHAT, {"use_beam_search": True}, "beam-search"),
        (COMPLETIONS, {"echo": True}, "echo"),
        (CHAT, {"echo": True, "logprobs": True, "top_logprobs": 1}, "echo"),
        (CHAT, {"prompt_logprobs": 0}, "prompt-logprobs"),
        (COMPLETIONS, {"prompt_logprobs": 1}, "prompt-logprobs"),
        (COMPLETIONS, {"truncate_prompt_tokens": -1}, "truncation"),
        (CHAT, {"truncate_prompt_tokens": 100}, "truncation"),
        (COMPLETIONS, {"prompt_embeds": "AAAA"}, "prompt-embeds"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, "several-prompts"),
        (COMPLETIONS, {"prompt": [[1], [2]]}, "several-prompts"),
        (RESPONSES, {"background": True}, "background"),
        (RESPONSES, {"previous_response_id": "resp_1"}, "previous-response"),
        (RESPONSES, {"truncation": "auto"}, "truncation"),
        (RESPONSES, {"tools": [{"type": "web_search_preview"}]}, "server-tools"),
        (RESPONSES, {"tools": [FUNCTION, {"type": "code_interpreter", "container": {"type": "auto"}}]}, "server-tools"),
        (RESPONSES, {"tools": [{"type": "mcp", "server_label": "x"}]}, "server-tools"),
    ],
)
def test_what_one_endpoint_must_serve(path: str, body: dict[str, object], expected: str) -> None:
    assert word(path, body) == expected


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"n": 1, "best_of": 1, "use_beam_search": False, "echo": False}),
        (CHAT, {"n": None, "best_of": None, "use_beam_search": None, "echo": None, "prompt_logprobs": None}),
        (CHAT, {"truncate_prompt_tokens": None, "tools": [{"type": "function", "function": {"name": "f"}}]}),
        (CHAT, {"logprobs": True, "top_logprobs": 5, "response_format": {"type": "json_object"}, "min_tokens": 5}),
        (COMPLETIONS, {"prompt": ["a"], "prompt_embeds": None, "logprobs": 3}),
        (COMPLETIONS, {"prompt": [1, 2, 3]}),
        (COMPLETIONS, {"prompt": [[1, 2, 3]]}),
        (RESPONSES, {"background": False, "previous_response_id": None, "truncation": "disabled", "store": True}),
        (RESPONSES, {"tools": [FUNCTION], "truncation": None}),
        (RESPONSES, {"tools": None}),
        ("/v1/messages", {"tools": [{"name": "f", "input_schema": {}}], "thinking": {"type": "enabled"}}),
        (CHAT, {"background": True, "previous_response_id": "x", "truncation": "auto"}),
    ],
)
def test_what_may_be_split_all_the_same(path: str, body: dict[str, object]) -> None:
    assert word(path, body) == ""


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (CHAT, {"n": "2"}, "n"),
        (CHAT, {"n": 2.0}, "n"),
        (CHAT, {"n": [1]}, "n"),
        (CHAT, {"use_beam_search": "true"}, "beam-search"),
        (COMPLETIONS, {"echo": 1}, "echo"),
        (CHAT, {"prompt_logprobs": False}, "prompt-logprobs"),
        (RESPONSES, {"background": "yes"}, "background"),
        (RESPONSES, {"tools": "web_search_preview"}, "server-tools"),
        (RESPONSES, {"tools": [{}]}, "server-tools"),
        (RESPONSES, {"tools": [5]}, "server-tools"),
    ],
)
def test_what_an_engine_may_read_more_kindly_is_not_split(path: str, body: dict[str, object], expected: str) -> None:
    assert word(path, body) == expected


def test_an_escaped_or_repeated_key_counts_as_engines_read_it() -> None:
    prompt = '"model":"m","prompt":"hi"'
    assert word(COMPLETIONS, f'{{{prompt},"\\u006e":2}}') == "n"
    assert word(COMPLETIONS, f'{{{prompt},"echo":false,"echo":true}}') == "echo"
    assert word(COMPLETIONS, f'{{{prompt},"echo":true,"echo":false}}') == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
NAMES = st.sampled_from(["n", "echo", "use_beam_search", "prompt_logprobs", "tools", "background", "truncation"])


@given(st.sampled_from(sorted(MINIMAL)), st.dictionaries(NAMES, JSON, max_size=4))
def test_no_value_is_refused_here(path: str, body: dict[str, object]) -> None:
    found = word(path, body)
    if body.get("n", 1) not in (None, 1) or body.get("echo"):
        assert found != ""
