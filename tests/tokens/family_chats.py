"""Chats of all kinds, and the templates of real model families to render them with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "data" / "tokens" / "templates"
FAMILY_TEMPLATES: dict[str, str] = {
    path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.jinja"))
}
"""By name; the folder's README says where they are from."""

USER = {"role": "user", "content": "What is the weather in Paris?"}
ANSWER = {"role": "assistant", "content": " Sunny, \u00e9t\u00e9 <b>27</b> \u00b0C. "}
CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Par\u00eds", "n": 1}'},
        }
    ],
}
RESULT = {"role": "tool", "content": '{"sky": "blue"}', "tool_call_id": "call_1"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Where <it> rains, \u00e9t\u00e9",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "n": {"type": ["integer", "null"]}},
            "required": ["city"],
        },
    },
}
DOCUMENTS = [{"title": "Rain", "text": "It rains."}, {"title": "Sun", "text": ""}]
UNPROMPTED = {"add_generation_prompt": False}
CONTINUED = {**UNPROMPTED, "continue_final_message": True}

FAMILY_CHATS: dict[str, dict[str, Any]] = {
    "question": {"messages": [USER]},
    "conversation": {"messages": [{"role": "system", "content": "Be brief."}, USER, ANSWER, USER]},
    "parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello "}, {"type": "text", "text": "you"}]}]
    },
    "tools": {"messages": [USER], "tools": [WEATHER]},
    "call": {"messages": [USER, CALLED, RESULT], "tools": [WEATHER]},
    "two calls": {
        "messages": [USER, CALLED | {"tool_calls": CALLED["tool_calls"] * 2}, RESULT, RESULT, ANSWER, USER],
        "tools": [WEATHER, WEATHER],
    },
    "documents": {"messages": [USER], "documents": DOCUMENTS},
    "no prompt": {"messages": [USER, ANSWER], **UNPROMPTED},
    "continued": {"messages": [USER, ANSWER], **CONTINUED},
    "continued part": {
        "messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": "It is "}]}],
        **CONTINUED,
    },
    "continued question": {"messages": [USER], **CONTINUED},
    "thinking": {"messages": [USER, {**ANSWER, "reasoning": "So hot."}, USER]},
    "no thinking": {"messages": [USER, ANSWER, USER], "chat_template_kwargs": {"enable_thinking": False}},
    "effort": {"messages": [USER], "reasoning_effort": "low"},
    "empty": {"messages": [{"role": "user", "content": ""}, {"role": "assistant"}, {"role": "user", "content": " \n"}]},
    "out of turn": {"messages": [ANSWER, ANSWER, {"role": "system", "content": "Late."}]},
}
"""Bodies of ``/v1/chat/completions``, without the model."""
