"""The template renders as transformers does: the messages of every case go through both."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simulator.template import ChatTemplate, TemplateError

USER = {"role": "user", "content": "What is the weather in Zürich?"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"x": "é<&"}'}}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [{"role": "system", "content": "Be brief."}, USER],
        [USER, {"role": "assistant", "content": "Fine."}, USER],
    ],
)
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_renders_as_transformers_does(reference: Any, messages: list[dict[str, Any]], tools: Any) -> None:
    expected = reference.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
    assert ChatTemplate().render(messages, tools=tools) == expected


def test_tool_call_arguments_become_objects(reference: Any) -> None:
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "21"}]
    parsed = {**CALL, "function": {"name": "f", "arguments": {"x": "é<&"}}}
    as_vllm = [USER, {"role": "assistant", "content": "", "tool_calls": [parsed]}, {"role": "tool", "content": "21"}]
    expected = reference.apply_chat_template(as_vllm, tools=TOOLS, tokenize=False, add_generation_prompt=True)
    assert ChatTemplate().render(messages, tools=TOOLS) == expected
    assert '{"x": "é<&"}' in expected


@pytest.mark.parametrize("text", ["Sure, I", "Sure, I ", "Sure\n"])
def test_continues_the_final_message(reference: Any, text: str) -> None:
    messages = [USER, {"role": "assistant", "content": text}]
    expected = reference.apply_chat_template(messages, tokenize=False, continue_final_message=True)
    rendered = ChatTemplate().render(messages, add_generation_prompt=False, continue_final_message=True)
    assert rendered == expected
    assert rendered.endswith(text)


def test_text_parts_are_joined_for_a_string_template() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": ""}, {"type": "image_url"}, "two"]
    assert "one\ntwo" in ChatTemplate().render([{"role": "user", "content": parts}])


def test_only_the_fields_that_vllm_hands_on_reach_the_template() -> None:
    template = ChatTemplate("{{ messages | tojson }}")
    given = [
        {**USER, "mark": 1, "name": "bob"},
        {"role": "assistant", "content": None, "tool_calls": [{**CALL, "index": 0}], "reasoning": "r"},
        {"role": "tool", "content": "21", "tool_call_id": "call_1"},
    ]
    function = {"arguments": {"x": "é<&"}, "name": "f"}
    assert json.loads(template.render(given)) == [
        {**USER, "name": "bob"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_1", "function": function, "type": "function"}],
            "reasoning": "r",
            "reasoning_content": "r",
        },
        {"role": "tool", "content": "21", "tool_call_id": "call_1"},
    ]


def test_text_becomes_parts_for_a_template_that_loops_over_content() -> None:
    template = ChatTemplate("{% for m in messages %}{% for c in m.content %}[{{ c.text }}]{% endfor %}{% endfor %}")
    assert template.render([{"role": "user", "content": "hi"}]) == "[hi]"


def test_developer_becomes_the_system_message() -> None:
    messages = [USER, {"role": "developer", "content": "b"}, {"role": "system", "content": "c"}]
    assert ChatTemplate().render(messages).startswith("<|im_start|>system\nb\n\nc<|im_end|>")


def test_kwargs_reach_the_template_and_nulls_do_not() -> None:
    template = ChatTemplate("{{ mark | default('none') }}{{ bos_token }}", {"bos_token": "<s>"})
    assert template.render([USER], kwargs={"mark": "x"}) == "x<s>"
    assert template.render([USER], kwargs={"mark": None}) == "none<s>"


@pytest.mark.parametrize("source", ["{{ raise_exception('no') }}", "{{ messages[9].content }}", "{% if %}"])
def test_refusals_are_template_errors(source: str) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(source).render([USER])
