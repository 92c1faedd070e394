"""Bodies of ``/v1/responses`` and ``/v1/messages`` whose ids an engine and the gateway must agree on."""

from __future__ import annotations

from typing import Any

from tests.engines.chats import FUNCTION

Body = dict[str, Any]

_MESSAGE = (
    "[{{ message.role }}{{ ' ' + message.name if message.name }}{{ ' ' + message.task if message.task }}]"
    "{{ message.content | tojson }}{{ message.tool_calls | default('', true) | tojson }}"
    "{{ message.reasoning | default('', true) | tojson }}{{ message.reasoning_content | default('', true) | tojson }}"
    "{{ message.tool_call_id or '' }}{{ message.tools | default('', true) | tojson }}"
)
_END = (
    "{{ tools | default('', true) | tojson }}{{ documents | default('', true) | tojson }}"
    "|{{ reasoning_effort }}|{{ enable_thinking }}|{{ add_generation_prompt }}"
)
TEMPLATES: dict[str, str | None] = {
    "own": None,
    # what a template sees, by name: a whole message has more, by the version of transformers
    "texts": "{# 'developer' #}{% for message in messages %}" + _MESSAGE + "{% endfor %}" + _END,
    "parts": (
        "{% for message in messages %}{% for part in message.content %}{% endfor %}" + _MESSAGE + "{% endfor %}" + _END
    ),
    "one system": (
        "{% for message in messages %}{% if message.role == 'system' and not loop.first %}"
        "{{ raise_exception('system must be first') }}{% endif %}" + _MESSAGE + "{% endfor %}" + _END
    ),
    "no effort": "{% for message in messages %}" + _MESSAGE + "{% endfor %}|{{ enable_thinking }}",
    "no thinking": "{% for message in messages %}" + _MESSAGE + "{% endfor %}",
    "always thinks": (
        "{% if reasoning_effort == 'none' %}{{ raise_exception('always') }}{% endif %}"
        "{% for message in messages %}" + _MESSAGE + "{% endfor %}" + _END
    ),
    "its own default": (
        "{% for message in messages %}{{ message.content }}{% endfor %}"
        "{{ reasoning_effort if reasoning_effort in ('low', 'high') else 'max' }}"
    ),
}
"""Templates to render them with: the tokenizer's own is of ``model.py``."""

SCHEMA: Body = FUNCTION["parameters"]
FLAT: Body = {"type": "function", **FUNCTION}
CODE: Body = {"type": "custom", "name": "code", "description": "Runs code"}
CRM: Body = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers",
    "tools": [
        {"type": "function", "name": "find", "parameters": {"type": "object", "properties": {}}, "strict": True},
        {"type": "custom", "name": "raw"},
    ],
}


def said(text: str, **more: Any) -> Body:
    """An assistant's message as a response has it."""
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **more}


def asked(content: Any, role: str = "user", **more: Any) -> Body:
    return {"role": role, "content": content, **more}


def input_text(text: str, **more: Any) -> Body:
    return {"type": "input_text", "text": text, **more}


def call(name: str = "get_weather", arguments: str = '{"city": "Paris"}', call_id: str = "call-1", **more: Any) -> Body:
    return {"type": "function_call", "name": name, "arguments": arguments, "call_id": call_id, **more}


def output(value: Any, call_id: str = "call-1", **more: Any) -> Body:
    return {"type": "function_call_output", "call_id": call_id, "output": value, **more}


def thought(*texts: str, summary: tuple[str, ...] = (), **more: Any) -> Body:
    item: Body = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": text} for text in summary],
    }
    if texts:
        item["content"] = [{"type": "reasoning_text", "text": text} for text in texts]
    return item | more


def response(*items: Body, **more: Any) -> Body:
    return {"input": list(items), **more}


RESPONSES: dict[str, Body] = {
    "text": {"input": "What is the weather in Paris?"},
    "empty text": {"input": ""},
    "instructions": {"input": "hi", "instructions": "Be brief."},
    "empty instructions": {"input": "hi", "instructions": ""},
    "null instructions": {"input": "hi", "instructions": None},
    "one message": response(asked("hi")),
    "typed message": response(asked("hi", type="message", id="msg_1", status="completed")),
    "parts": response(asked([input_text("one"), input_text("two\n"), input_text(" three")])),
    "one part": response(asked([input_text("one")])),
    "no parts": response(asked([]), asked("hi")),
    "part with unknown keys": response(asked([input_text("one", x_more=1)])),
    "system and developer": response(asked("S.", "system"), asked("D.", "developer"), asked("hi")),
    "developer parts": response(asked([input_text("a"), input_text("b")], "developer"), asked("hi")),
    "developer with tools": response(
        asked("D.", "developer", tools=[{"type": "function", "x": 1, "function": {"parameters": {}, "name": "f"}}]),
        asked("hi"),
    ),
    "instructions and system": response(asked("S.", "system"), asked("hi"), instructions="I."),
    "billing header": response(asked("x-anthropic-billing-header: a\nrest", "system"), asked("hi")),
    "names": response(asked("hi", name="ann"), asked("ho", "assistant", name="bot"), asked("more", task="t")),
    "history": response(asked("hi"), asked("hello", "assistant"), asked("and now?")),
    "history of items": response(asked("hi"), said("hello", id="msg_1", status="completed"), asked("and now?")),
    "history without ids": response(asked("hi"), said("hello"), asked("and now?")),
    "two output texts": response(
        asked("hi"),
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "a", "annotations": []}, {"type": "output_text", "text": "b"}],
        },
        asked("more"),
    ),
    "an output text and a refusal": response(
        asked("hi"),
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "No."}],
        },
        asked("more"),
    ),
    "a refusal": response(
        asked("hi"),
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        asked("more"),
    ),
    "untyped output text": response(
        asked("hi"), {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]}, asked("more")
    ),
    "assistant of input texts": response(asked("hi"), asked([input_text("a"), input_text("b")], "assistant")),
    "typed assistant of input texts": response(
        asked("hi"), asked([input_text("a"), input_text("b")], "assistant", type="message"), asked("x")
    ),
    "two assistants": response(asked("hi"), asked("a", "assistant"), asked("b", "assistant"), asked("more")),
    "assistant without parts": response(asked("hi"), asked([], "assistant", type="message"), asked("more")),
    "untyped assistant without parts": response(asked("hi"), asked([], "assistant"), asked("more")),
    # calls
    "call": response(asked("hi"), call(), output("sunny"), tools=[FLAT]),
    "call with ids": response(
        asked("hi"), call(id="fc_1", status="completed"), output("sunny", id="fo_1", status="completed")
    ),
    "two calls": response(asked("hi"), call(), call("now", "{}", "call-2"), output("a"), output("b", "call-2")),
    "call behind text": response(asked("hi"), said("Looking."), call(), output("sunny")),
    "call behind plain text": response(asked("hi"), asked("Looking.", "assistant"), call(), output("sunny")),
    "text behind a call": response(asked("hi"), call(), said("Looking."), output("sunny")),
    "call in a namespace": response(asked("hi"), call("find", "{}", namespace="crm"), output("x"), tools=[CRM]),
    "broken arguments": response(asked("hi"), call(arguments='{"a": '), output("x")),
    "arguments with floats": response(asked("hi"), call(arguments='{"f": 1.0, "g": 1e3, "é": "\\u00e9"}'), output("x")),
    "empty arguments": response(asked("hi"), call(arguments=""), output("x")),
    "output of parts": response(asked("hi"), call(), output([input_text("12"), input_text("degrees")])),
    "output of parts with ids": response(
        asked("hi"), call(), output([input_text("12")], id="fo_1", status="completed")
    ),
    "empty output": response(asked("hi"), call(), output("")),
    "output without a call id": response(asked("hi"), call(), {"type": "function_call_output", "output": "x"}),
    "custom call": response(
        asked("hi"),
        {"type": "custom_tool_call", "call_id": "c", "name": "code", "input": 'print("é")'},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "é"},
        tools=[CODE],
    ),
    "custom output of parts": response(
        asked("hi"),
        {"type": "custom_tool_call", "call_id": "c", "name": "code", "input": ""},
        {"type": "custom_tool_call_output", "call_id": "c", "output": [input_text("a"), input_text("b")]},
    ),
    # reasoning
    "reasoning": response(asked("hi"), thought("because"), said("a"), asked("why")),
    "reasoning without an id": response(
        asked("hi"),
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "b"}]},
        said("a"),
        asked("why"),
    ),
    "two thoughts": response(asked("hi"), thought("a", "b"), said("a"), asked("why")),
    "summary": response(asked("hi"), thought(summary=("in short",)), said("a"), asked("why")),
    "empty reasoning": response(asked("hi"), thought(), said("a"), asked("why")),
    "reasoning behind text": response(asked("hi"), said("a"), thought("later"), asked("why")),
    "reasoning, call": response(
        asked("hi"), thought("because"), call(), output("x"), thought("so"), said("y"), asked("z")
    ),
    "reasoning twice": response(asked("hi"), thought("a"), thought("b"), said("c"), asked("z")),
    "encrypted reasoning": response(asked("hi"), thought("a", encrypted_content="xx"), said("c"), asked("z")),
    "null encryption": response(asked("hi"), thought("a", encrypted_content=None), said("c"), asked("z")),
    "reasoning without a summary": response(
        asked("hi"), {"type": "reasoning", "id": "r", "content": [{"type": "reasoning_text", "text": "a"}]}, said("c")
    ),
    # what is to be continued
    "unfinished": response(asked("hi"), said("I think", status="in_progress")),
    "incomplete": response(asked("hi"), said("I think", status="incomplete", id="m")),
    "unfinished text": response(asked("hi"), asked("I think", "assistant", status="incomplete")),
    "unfinished user": response(asked("hi th", status="in_progress")),
    "unfinished output": response(asked("hi"), call(), output("x", status="incomplete")),
    "unfinished call": response(asked("hi"), call(status="in_progress")),
    "unfinished and finished": response(asked("hi"), said("I think", status="in_progress"), asked("go on")),
    "assistant last": response(asked("hi"), said("I think")),
    # tools
    "tools": {"input": "hi", "tools": [FLAT]},
    "tool in another order": {
        "input": "hi",
        "tools": [{"parameters": {"b": 1, "a": 2}, "name": "f", "type": "function"}],
    },
    "bare tool": {"input": "hi", "tools": [{"type": "function", "name": "now"}]},
    "strict tool": {"input": "hi", "tools": [{**FLAT, "strict": True}]},
    "loose tool": {"input": "hi", "tools": [{**FLAT, "strict": False}]},
    "null strict": {"input": "hi", "tools": [{**FLAT, "strict": None, "description": None}]},
    "deferred tool": {"input": "hi", "tools": [{**FLAT, "defer_loading": True}]},
    "tool with unknown keys": {"input": "hi", "tools": [{**FLAT, "x_more": 1, "output_schema": {"type": "string"}}]},
    "custom tool": {"input": "hi", "tools": [CODE]},
    "grammar tool": {
        "input": "hi",
        "tools": [{**CODE, "format": {"type": "grammar", "syntax": "lark", "definition": "start: A"}}],
    },
    "text tool": {"input": "hi", "tools": [{**CODE, "format": {"type": "text"}}]},
    "namespace": {"input": "hi", "tools": [CRM, FLAT]},
    "server tool": {"input": "hi", "tools": [{"type": "web_search_preview"}]},
    "server tool and function": {"input": "hi", "tools": [{"type": "web_search_preview"}, FLAT]},
    "no tools": {"input": "hi", "tools": []},
    "null tools": {"input": "hi", "tools": None},
    "chat tool": {"input": "hi", "tools": [{"type": "function", "function": FUNCTION}]},
    "unknown tool": {"input": "hi", "tools": [{"type": "teapot"}]},
    "tool choice": {"input": "hi", "tools": [FLAT], "tool_choice": "none"},
    "named tool choice": {"input": "hi", "tools": [FLAT], "tool_choice": {"type": "function", "name": "get_weather"}},
    # what changes the rendering
    "effort": {"input": "hi", "reasoning": {"effort": "low"}},
    "no effort": {"input": "hi", "reasoning": {"effort": "none"}},
    "null effort": {"input": "hi", "reasoning": {"effort": None}},
    "effort and thinking": {
        "input": "hi",
        "reasoning": {"effort": "none"},
        "chat_template_kwargs": {"enable_thinking": True},
    },
    "unknown effort": {"input": "hi", "reasoning": {"effort": "x"}},
    "thinking off": {"input": "hi", "chat_template_kwargs": {"enable_thinking": False}},
    "kwarg against us": {"input": "hi", "chat_template_kwargs": {"add_generation_prompt": False}},
    "documents": {"input": "hi", "chat_template_kwargs": {"documents": [{"text": "t"}]}},
    "previous messages": {"input": "hi", "previous_input_messages": [{"role": "user", "content": "x"}]},
    "special tokens": {"input": "hi", "add_special_tokens": False},
    "no truncation": {"input": "hi", "truncation": "disabled"},
    "truncation": {"input": "hi", "truncation": "auto"},
    "null truncation": {"input": "hi", "truncation": None},
    # what is refused
    "item reference": response(asked("hi"), {"type": "item_reference", "id": "x"}),
    "web search": response(
        asked("hi"), {"type": "web_search_call", "id": "x", "status": "completed", "action": {"type": "search"}}
    ),
    "other role": response(asked("hi", "critic")),
    "tool role": response(asked("hi"), {"role": "tool", "content": "x", "tool_call_id": "c"}),
    "null type": response(asked("hi", type=None)),
    "text part": response(asked([{"type": "text", "text": "a"}])),
    "no content": response({"role": "user"}),
    "null content": response(asked(None)),
    "no items": response(),
    "number": {"input": 5},
    "list of texts": {"input": ["a"]},
    "arguments as an object": response(asked("hi"), {**call(), "arguments": {}}),
    "additional tools": response({"type": "additional_tools", "role": "developer", "tools": [FLAT]}, asked("hi")),
}


def message(*messages: Body, **more: Any) -> Body:
    return {"messages": list(messages), "max_tokens": 1, **more}


def block(kind: str, **more: Any) -> Body:
    return {"type": kind, **more}


def text(value: str, **more: Any) -> Body:
    return {"type": "text", "text": value, **more}


def used(call_id: str = "toolu_1", name: str = "get_weather", **arguments: Any) -> Body:
    return block("tool_use", id=call_id, name=name, input=arguments)


def result(content: Any = None, call_id: str = "toolu_1", **more: Any) -> Body:
    return block("tool_result", tool_use_id=call_id, **({} if content is None else {"content": content}), **more)


ANTHROPIC_TOOL: Body = {"name": "get_weather", "description": "The weather of a city", "input_schema": SCHEMA}

MESSAGES: dict[str, Body] = {
    "user": message(asked("What is the weather in Paris?")),
    "system": message(asked("hi"), system="Be brief."),
    "empty system": message(asked("hi"), system=""),
    "system blocks": message(asked("hi"), system=[text("One. "), text("Two."), text("")]),
    "cached blocks": message(
        asked([text("hi", cache_control={"type": "ephemeral"})]),
        system=[text("One.", cache_control={"type": "ephemeral", "ttl": "5m"})],
    ),
    "billing block": message(asked("hi"), system=[text("x-anthropic-billing-header: a=b"), text("Be brief.")]),
    "billing text": message(asked("hi"), system="x-anthropic-billing-header: a=b\nBe brief."),
    "billing only": message(asked("hi"), system=[text("x-anthropic-billing-header: a=b")]),
    "inline system": message(asked("hi"), asked("Late.", "system"), asked("go on")),
    "inline systems": message(
        asked("hi"),
        asked([text("One."), text("Two.")], "system"),
        asked("go on"),
        asked("Three.", "system"),
        system="Zero.",
    ),
    "inline billing": message(
        asked("hi"),
        asked("x-anthropic-billing-header: a\nrest", "system"),
        asked([text("x-anthropic-billing-header: a\nrest"), text("kept")], "system"),
        asked("go on"),
    ),
    "billing and inline": message(
        asked("hi"), asked("S", "system"), asked("x"), system="x-anthropic-billing-header: a"
    ),
    "empty inline system": message(asked("hi"), asked("", "system"), asked([], "system"), asked("go on")),
    "history": message(asked("hi"), asked("hello", "assistant"), asked("and now?")),
    "prefill": message(asked("hi"), asked("I think", "assistant")),
    "blocks": message(asked([text("one"), text("two\n"), text(" three")])),
    "one block": message(asked([text("one")])),
    "empty block": message(asked([text(""), text("x")])),
    "only empty blocks": message(asked([text("")]), asked("x", "assistant"), asked("more")),
    "empty text": message(asked("")),
    "no blocks": message(asked([]), asked("hi")),
    "assistant without blocks": message(asked("hi"), asked([], "assistant"), asked("more")),
    # thinking
    "thinking": message(
        asked("hi"), asked([block("thinking", thinking="because", signature="s"), text("a")], "assistant"), asked("why")
    ),
    "two thoughts": message(
        asked("hi"),
        asked([block("thinking", thinking="a"), block("thinking", thinking="b"), text("c")], "assistant"),
        asked("why"),
    ),
    "empty thought": message(
        asked("hi"), asked([block("thinking", thinking=""), text("c")], "assistant"), asked("why")
    ),
    "only thinking": message(asked("hi"), asked([block("thinking", thinking="a")], "assistant"), asked("why")),
    "redacted": message(
        asked("hi"), asked([block("redacted_thinking", data="xx"), text("c")], "assistant"), asked("why")
    ),
    "thinking enabled": message(asked("hi"), max_tokens=2048, thinking={"type": "enabled", "budget_tokens": 1024}),
    "thinking disabled": message(asked("hi"), thinking={"type": "disabled"}),
    "thinking adaptive": message(asked("hi"), thinking={"type": "adaptive"}),
    "effort": message(asked("hi"), output_config={"effort": "low"}),
    "effort and adaptive": message(asked("hi"), output_config={"effort": "max"}, thinking={"type": "adaptive"}),
    "effort and disabled": message(asked("hi"), output_config={"effort": "high"}, thinking={"type": "disabled"}),
    "unknown effort": message(asked("hi"), output_config={"effort": "x"}),
    "kwargs": message(asked("hi"), chat_template_kwargs={"enable_thinking": False}),
    "kwargs and disabled": message(
        asked("hi"), chat_template_kwargs={"enable_thinking": True}, thinking={"type": "disabled"}
    ),
    "null kwargs": message(asked("hi"), chat_template_kwargs=None, thinking=None, tools=None, system=None),
    # tools
    "tools": message(asked("hi"), tools=[ANTHROPIC_TOOL]),
    "tools and system": message(asked("hi"), tools=[ANTHROPIC_TOOL], system="Be brief."),
    "tool without a type": message(
        asked("hi"), tools=[{"name": "now", "input_schema": {"properties": {"a": {"type": "string"}}}}]
    ),
    "custom tool": message(asked("hi"), tools=[{**ANTHROPIC_TOOL, "type": "custom", "cache_control": {"type": "e"}}]),
    "strict tool": message(asked("hi"), tools=[{**ANTHROPIC_TOOL, "strict": True}]),
    "deferred tool": message(asked("hi"), tools=[{**ANTHROPIC_TOOL, "defer_loading": True}]),
    "eager tool": message(asked("hi"), tools=[{**ANTHROPIC_TOOL, "defer_loading": False, "strict": None}]),
    "tool in another order": message(asked("hi"), tools=[{"input_schema": {"b": 1, "a": 2}, "name": "f"}]),
    "no tools": message(asked("hi"), tools=[]),
    "server tool": message(asked("hi"), tools=[{"type": "web_search_20250305", "name": "web_search"}]),
    "tool choice": message(asked("hi"), tools=[ANTHROPIC_TOOL], tool_choice={"type": "any"}),
    "no tool choice": message(asked("hi"), tools=[ANTHROPIC_TOOL], tool_choice={"type": "none"}),
    "tools added": message(
        asked("hi"),
        asked(
            [
                block("tool_addition", tool={"type": "tool_definition", "definition": {**ANTHROPIC_TOOL, "name": "g"}}),
                block("tool_addition", tool={"type": "tool_reference", "name": "f"}),
                block("tool_removal", tool={"type": "tool_reference", "name": "get_weather"}),
                text("Now."),
            ],
            "system",
        ),
        asked("go on"),
        tools=[ANTHROPIC_TOOL, {"name": "f", "input_schema": {}, "defer_loading": True}],
    ),
    "removed and added": message(
        asked("hi"),
        asked([block("tool_removal", tool={"type": "tool_reference", "name": "get_weather"})], "system"),
        asked([block("tool_addition", tool={"type": "tool_reference", "name": "get_weather"})], "system"),
        tools=[ANTHROPIC_TOOL],
    ),
    "unknown tool added": message(
        asked("hi"), asked([block("tool_addition", tool={"type": "tool_reference", "name": "f"})], "system")
    ),
    # calls
    "call": message(
        asked("hi"), asked([used(city="Paris")], "assistant"), asked([result("sunny")]), tools=[ANTHROPIC_TOOL]
    ),
    "call and text": message(
        asked("hi"),
        asked([text("Looking."), used(city="Zürich", n=1.0, deep={"a": [None, True]})], "assistant"),
        asked([result([text("12"), text("degrees")]), text("well?")]),
    ),
    "text behind a call": message(asked("hi"), asked([used(), text("x")], "assistant"), asked([result("y")])),
    "two calls": message(
        asked("hi"),
        asked([block("thinking", thinking="t"), used("a"), used("b", "now")], "assistant"),
        asked([result("1", "a"), text("between"), result("2", "b"), text("behind")]),
    ),
    "null input": message(
        asked("hi"), asked([block("tool_use", id="a", name="f", input=None)], "assistant"), asked([result("x", "a")])
    ),
    "nameless call": message(asked("hi"), asked([block("tool_use", id="a")], "assistant"), asked([result("x", "a")])),
    "call without an id": message(asked("hi"), asked([block("tool_use", name="f")], "assistant"), asked("x")),
    "empty result": message(asked("hi"), asked([used()], "assistant"), asked([result()])),
    "empty result text": message(asked("hi"), asked([used()], "assistant"), asked([result("")])),
    "failed result": message(asked("hi"), asked([used()], "assistant"), asked([result("no", is_error=True)])),
    "odd results": message(
        asked("hi"), asked([used()], "assistant"), asked([result([{"x": 1}, text("a"), {"type": "json", "a": 1}])])
    ),
    "result with references": message(
        asked("hi"),
        asked([used()], "assistant"),
        asked([result([block("tool_reference", tool_name="f"), block("tool_reference", name="g"), text("a")])]),
        tools=[ANTHROPIC_TOOL],
    ),
    "assistant's result": message(
        asked("hi"), asked([result([text("it's 'odd'")]), result("b"), result()], "assistant"), asked("more")
    ),
    "reference block": message(asked([block("tool_reference", tool_name="f"), text("x")])),
    # what is refused
    "unknown block": message(asked([block("document", source={})])),
    "other role": message(asked("hi", "tool")),
    "null content": message(asked(None)),
    "text as a number": message(asked([{"type": "text", "text": 5}])),
    "addition by a user": message(
        asked([block("tool_addition", tool={"type": "tool_reference", "name": "f"})]), tools=[ANTHROPIC_TOOL]
    ),
}
