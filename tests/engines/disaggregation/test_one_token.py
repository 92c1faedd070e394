"""vLLM takes our prefill leg of every request that it would take whole: its own models read both, field by field.

No engine is started: the models are imported by its Python. Each of their fields must be in a body that they accept, so
that a field of a new vLLM is missed here first.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.api.parse import Parsed, parse
from gateway.api.routes import ROUTES
from gateway.api.settings import PassThroughSettings
from gateway.proxy.serving.connectors import Pair, Transfer
from gateway.proxy.serving.connectors.mooncake import MooncakeTransfer
from gateway.proxy.serving.connectors.nixl import NixlTransfer
from gateway.proxy.serving.connectors.shared_storage import SharedStorageTransfer
from gateway.proxy.serving.handover_failures import HandoverFailed
from tests.engines.chats import FUNCTION, WEATHER, Body, user
from tests.support.candidates import endpoint

READ = """
import json, sys
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

MODELS = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": AnthropicMessagesRequest,
}
LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")

def read(path, body):
    try:
        asked = MODELS[path].model_validate(body)
        if path == "/v1/messages":
            asked = AnthropicServingMessages.to_chat_completion_request(asked)
        given = [getattr(asked, name) for name in LIMITS if name in type(asked).model_fields]
        limits = [limit for limit in given if limit is not None]
        if getattr(asked, "use_beam_search", False):
            return {"refusal": ""}
        sampling = asked.to_sampling_params((limits or [4096])[0], {})
        work = sampling.max_tokens, sampling.min_tokens, sampling.logprobs, sampling.logprob_token_ids
        return {"refusal": "", "work": work}
    except Exception as error:
        return {"refusal": f"{type(error).__name__}: {error}"}

asked = json.load(sys.stdin)
json.dump({
    "fields": {path: sorted(model.model_fields) for path, model in MODELS.items()},
    "read": [read(path, body) for path, body in asked],
}, sys.stdout)
"""
"""Runs under the engine's Python: the models' fields, and what becomes of bodies: why they are refused, or the work."""

JSON_SCHEMA: Body = {"type": "object", "properties": {"city": {"type": "string"}}}
BASES: dict[str, Body] = {
    "/v1/chat/completions": {"messages": [user("x")]},
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": [user("x")], "max_tokens": 4000},
}
VARIANTS: tuple[Body, ...] = (
    {"request_id": "r", "user": "u", "session_id": "s", "priority": 0, "metadata": {"user_id": "u"}},
    {"system": "Be brief."},
    {"instructions": "Be brief."},
    # limits
    {"max_tokens": 50},
    {"max_tokens": None, "max_completion_tokens": None},
    {"max_completion_tokens": 100, "max_tokens": 50},
    {"max_output_tokens": 50},
    {"min_tokens": 5, "max_tokens": 10},
    {"thinking_token_budget": 500, "max_tokens": 1000},
    {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    {"thinking": {"type": "adaptive"}},
    {"thinking": {"type": "disabled"}},
    {"reasoning": {"effort": "low"}},
    {"reasoning_effort": "low", "include_reasoning": False},
    {"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": JSON_SCHEMA}}},
    {"repetition_detection": {"max_pattern_size": 5, "min_pattern_size": 1, "min_count": 3}},
    {"max_tool_calls": 5},
    # streams
    {"stream": True},
    {"stream": None},
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"stream": True, "stream_interval": 3},
    # probabilities and ids
    {"logprobs": 1},
    {"logprobs": 0},
    {"logprobs": True, "top_logprobs": 2},
    {"logprobs": True, "top_logprobs": -1},
    {"logprobs": 1, "logprob_token_ids": [1, 2]},
    {"include": ["message.output_text.logprobs"], "top_logprobs": 3},
    {"include": ["reasoning.encrypted_content"], "store": False},
    {"logprobs": 1, "return_tokens_as_token_ids": True, "return_token_ids": True},
    {"return_prompt_text": True, "return_token_offsets": True},
    {"routed_experts_prompt_start": 0},
    # sampling
    {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3},
    {"temperature": 0},
    {"frequency_penalty": 0.5, "presence_penalty": 0.5, "repetition_penalty": 1.1, "length_penalty": 0.9},
    {"logit_bias": {"3": 1.0}, "allowed_token_ids": [1], "bad_words": ["q"]},
    {"watermarking": False},
    # what ends an answer
    {"stop": ["a"], "include_stop_str_in_output": True},
    {"stop": "a", "stop_token_ids": [3]},
    {"stop_sequences": ["a"]},
    {"ignore_eos": True},
    {"skip_special_tokens": False, "spaces_between_special_tokens": False},
    # its form
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": JSON_SCHEMA}}},
    {"structured_outputs": {"json": JSON_SCHEMA}},
    {"structured_outputs": {"choice": ["a", "b"]}},
    {"text": {"format": {"type": "json_schema", "name": "w", "schema": JSON_SCHEMA}}},
    # tools
    {"tools": [WEATHER]},
    {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False},
    {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": FUNCTION["name"]}}},
    {"tools": [{"type": "function", **FUNCTION}], "tool_choice": "required", "parallel_tool_calls": False},
    {"tools": [{"type": "function", **FUNCTION}], "tool_choice": {"type": "function", "name": FUNCTION["name"]}},
    {"tools": [{"name": FUNCTION["name"], "input_schema": JSON_SCHEMA}], "tool_choice": {"type": "any"}},
    # the prompt
    {"prompt": [3, 4, 5]},
    {"suffix": ""},
    {"add_special_tokens": True, "truncation_side": "left"},
    {"add_generation_prompt": True, "continue_final_message": False},
    {
        "chat_template": "{{ messages }}",
        "chat_template_kwargs": {"enable_thinking": False},
        "documents": [{"text": "d"}],
    },
    {"media_io_kwargs": {"image": {}}, "mm_processor_kwargs": {}, "mm_payload": "none"},
    {"return_mm_kwargs": False},
    {"cache_salt": "s", "prompt_cache_key": "k"},
    # what Responses API keeps
    {"store": True},
    {"enable_response_messages": True, "previous_input_messages": []},
    {"service_tier": "auto", "truncation": "disabled"},
    # what never passes
    {"vllm_xargs": {"k": 1}, "kv_transfer_params": {}, "ec_transfer_params": {}},
    # what is never split
    {"n": 2},
    {"use_beam_search": True, "n": 2},
    {"echo": True},
    {"prompt_logprobs": 1},
    {"truncate_prompt_tokens": 5},
    {"prompt_embeds": ""},
    {"background": True},
    {"previous_response_id": "resp_1"},
)
"""What a client may add to a base. Each is tried on every route, and counts where vLLM accepts it."""
UNSUPPORTED = {("/v1/responses", "prompt")}
"""vLLM has these fields, and refuses what is in them."""


@dataclass(frozen=True, slots=True)
class Case:
    """``leg``: what a prefill engine would get; None: the request stays whole."""

    name: str
    path: str
    body: Body
    leg: Body | None


def cases() -> Iterator[Case]:
    for path, base in BASES.items():
        for more in ({}, *VARIANTS):
            body = {"model": "m", **base, **more}
            call = parse(ROUTES[path], json.dumps(body).encode(), "application/json", PassThroughSettings())
            if call.indivisible:
                yield Case(call.indivisible, path, body, None)
                continue
            pair = Pair(ROUTES[path].kind, endpoint(0), endpoint(1), 8998)
            for transfer in (
                NixlTransfer(pair),
                MooncakeTransfer(pair, "e", "http://p:8998"),
                SharedStorageTransfer(pair),
            ):
                yield Case(type(transfer).__name__, path, body, prefill(transfer, call))


def prefill(transfer: Transfer, call: Parsed) -> Body | None:
    try:
        leg: Body = json.loads(transfer.prefill(call.body).encode("m"))
    except HandoverFailed:
        return None
    return leg


@dataclass(frozen=True, slots=True)
class Read:
    """``fields``: of the models, by path. ``whole``, ``legs``: what vLLM makes of each case's body and leg."""

    fields: dict[str, list[str]]
    whole: list[tuple[Case, Body]]
    legs: list[tuple[Case, Body]]


@pytest.fixture(scope="module")
def read(engine_venv: Path) -> Read:
    found = list(cases())
    split = [case for case in found if case.leg is not None]
    done = subprocess.run(
        [engine_venv / "bin" / "python", "-c", READ],
        input=json.dumps([(case.path, case.body) for case in found] + [(case.path, case.leg) for case in split]),
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    told: Any = json.loads(done.stdout.splitlines()[-1])
    whole, legs = told["read"][: len(found)], told["read"][len(found) :]
    return Read(told["fields"], list(zip(found, whole, strict=True)), list(zip(split, legs, strict=True)))


def accepted(read: Read) -> list[Case]:
    return [case for case, result in read.whole if not result["refusal"]]


def legs(read: Read) -> list[tuple[Case, Body]]:
    """Those of requests that vLLM would take whole."""
    valid = accepted(read)
    return [(case, result) for case, result in read.legs if case in valid]


def test_each_field_of_each_model_is_tried(read: Read) -> None:
    tried = {(case.path, name) for case in accepted(read) for name in case.body}
    untried = {(path, name) for path, names in read.fields.items() for name in names} - tried
    assert untried == UNSUPPORTED


def test_no_leg_is_refused(read: Read) -> None:
    assert {case.path for case, _ in legs(read)} == set(BASES)
    refused = [(case.name, case.path, case.body, result["refusal"]) for case, result in legs(read) if result["refusal"]]
    assert refused == []


def test_every_leg_asks_for_one_token_and_for_no_probabilities(read: Read) -> None:
    more = [(case, result) for case, result in legs(read) if result.get("work") != [1, 0, None, None]]
    assert more == []
