"""How bodies become token ids: what vLLM's renderer does to messages, tools and options before the template."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simulator.errors import ApiError
from simulator.prompts import Prompts, stops
from simulator.settings import EngineSettings
from simulator.template import ChatTemplate
from simulator.tokenizer import ByteWords

ECHO = "{{ messages | tojson }}|{{ tools | tojson }}|{{ reasoning_effort }}|{{ enable_thinking }}|{{ mark }}"


def prompts(template: str | None = None, **changes: Any) -> Prompts:
    words = ByteWords()
    if template is not None:
        words.template = ChatTemplate(template)
    return Prompts(EngineSettings(**changes), words)


async def rendered(body: dict[str, Any], template: str = ECHO) -> list[str]:
    ids = await prompts(template).chat({"messages": [{"role": "user", "content": "x"}], **body})
    return ByteWords().decode(list(ids)).split("|")


async def test_tools_are_dumped_with_their_absent_fields() -> None:
    tools = [
        {"type": "function", "function": {"name": "f", "extra": 1}},
        {"type": "function", "function": {"name": "g", "description": "d", "parameters": {"a": 1}, "strict": True}},
    ]
    assert json.loads((await rendered({"tools": tools}))[1]) == [
        {"type": "function", "function": {"name": "f", "description": None, "parameters": None}},
        {"type": "function", "function": {"name": "g", "description": "d", "parameters": {"a": 1}, "strict": True}},
    ]


async def test_reasoning_effort_sets_thinking_unless_the_client_did() -> None:
    assert (await rendered({"reasoning_effort": "none"}))[2:4] == ["none", "False"]
    assert (await rendered({"reasoning_effort": "high"}))[2:4] == ["high", "True"]
    kwargs = {"enable_thinking": "mine", "mark": "x"}
    assert (await rendered({"reasoning_effort": "none", "chat_template_kwargs": kwargs}))[2:] == ["none", "mine", "x"]


async def test_a_chat_has_no_special_tokens_unless_they_are_asked_for(tokenizer: str) -> None:
    from simulator.tokenizer import FileWords

    words = FileWords(tokenizer)
    reader = Prompts(EngineSettings(), words)
    body = {"messages": [{"role": "user", "content": "x"}]}
    plain = await reader.chat(body)
    special = await reader.chat({**body, "add_special_tokens": True})
    assert list(special[1:]) == list(plain)
    assert len(await reader.text("x", True)) == 2


async def test_only_both_wishes_for_the_end_are_refused() -> None:
    last = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    both = {"messages": last, "add_generation_prompt": True, "continue_final_message": True}
    with pytest.raises(ApiError, match="Cannot set both"):
        await prompts().chat(both)
    ids = await prompts().chat({"messages": last, "add_generation_prompt": False, "continue_final_message": True})
    assert ByteWords().decode(list(ids)).endswith("assistant\ny")


@pytest.mark.parametrize(
    ("body", "expected"),
    [({}, 90), ({"max_tokens": 7}, 7), ({"max_completion_tokens": 8, "max_tokens": 7}, 8), ({"max_tokens": None}, 90)],
)
def test_the_limit_is_what_is_asked_or_what_fits(body: dict[str, Any], expected: int) -> None:
    reader = prompts(max_model_len=100)
    assert reader.limit(body, [1] * 10, None, "max_completion_tokens", "max_tokens") == expected


def test_a_default_limit_is_cut_to_what_fits() -> None:
    assert prompts(max_model_len=100).limit({}, [1] * 95, 16, "max_tokens") == 5


@pytest.mark.parametrize(
    ("body", "expected"),
    [({}, ()), ({"stop": "a"}, ("a",)), ({"stop": ["a", "", 3, "b"]}, ("a", "b")), ({"stop": ""}, ())],
)
def test_stop_strings(body: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert stops(body) == expected
