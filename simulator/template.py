"""Chat templates: messages to the text that is tokenized, as Hugging Face renders them and vLLM calls it.

Needs jinja2 only: importing transformers takes seconds and a hundred megabytes, and four simulators share two cores.
Knows nothing of tokenizers or of HTTP.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

CHATML = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}
{{- messages[0].content + '\\n\\n' }}
{%- endif %}
{{- '# Tools\\n\\nYou may call these functions:\\n<tools>' }}
{%- for tool in tools %}
{{- '\\n' + tool | tojson }}
{%- endfor %}
{{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if not (loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role }}
{%- if message.content %}
{{- '\\n' + message.content }}
{%- else %}
{{- '\\n' }}
{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n' + {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
{{- '\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""ChatML with tools, as Qwen's models use it: what ``build_tokenizer`` saves, and what an engine without a tokenizer
renders."""

CONTENT_LOOP = re.compile(r"""for\s+\w+\s+in\s+\w+(\.content|\[['"]content['"]\])""")
"""A template that loops over a message's content wants parts; any other wants one text (vLLM walks the syntax tree)."""

TAG = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks the end of the message that is to be continued; the blank shows whether the template strips (as transformers
does it)."""


TEXT_OF = {"refusal": "refusal", "thinking": "thinking"}
"""Kinds of parts whose text is in a field of another name."""


class TemplateError(ValueError):
    """The template refused the messages, or cannot be parsed: the client's fault, a 400."""


class _Generation(Extension):
    """``{% generation %}`` blocks mark the assistant's tokens for training; rendering passes them through."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # Jinja's own filter escapes HTML characters; Hugging Face's does not.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise(message: str) -> None:
    raise TemplateError(message)


@lru_cache(maxsize=16)
def _compiled(source: str) -> jinja2.Template:
    """Raises TemplateError. Remembered: it takes longer than all else that an engine's start does, and most of a
    process's engines have the same."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise TemplateError(f"chat template: {error}") from error


class ChatTemplate:
    """A compiled template with the special tokens that it may name."""

    def __init__(self, source: str = CHATML, special: Mapping[str, str] | None = None) -> None:
        self._template = _compiled(source)
        self._special = dict(special or {})
        self._knows_developer = "developer" in source
        self._lists_content = CONTENT_LOOP.search(source) is not None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. Raises TemplateError where the template refuses the messages."""
        conversation = self._conversation(messages)
        if continue_final_message:
            _tag(conversation)
        try:
            text = self._template.render(
                messages=conversation,
                tools=list(tools) if tools else None,
                add_generation_prompt=add_generation_prompt,
                **{**self._special, **{key: value for key, value in (kwargs or {}).items() if value is not None}},
            )
        except TemplateError:
            raise
        except Exception as error:  # a template can make anything raise; vLLM answers 400 to all of it
            raise TemplateError(f"chat template: {error}") from error
        return _cut(text) if continue_final_message else text

    def _conversation(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        parsed = [self._message(message) for message in messages]
        if self._knows_developer or not any(message["role"] == "developer" for message in parsed):
            return parsed
        # A template without the developer role gets one system message, first, of all there are.
        systems = [message["content"] for message in parsed if message["role"] in ("developer", "system")]
        rest = [message for message in parsed if message["role"] not in ("developer", "system")]
        texts = [text if isinstance(text, str) else "\n".join(part["text"] for part in text) for text in systems]
        return [{"role": "system", "content": "\n\n".join(text for text in texts if text)}, *rest]

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that vLLM hands on, in its order; all others are dropped."""
        role = message["role"]
        result: dict[str, Any] = {"role": role, "content": self._content(message.get("content"))}
        if role == "assistant":
            if calls := [_call(call) for call in message.get("tool_calls") or () if isinstance(call, dict)]:
                result["tool_calls"] = calls
            reasoning = message.get("reasoning", message.get("reasoning_content"))
            if reasoning is not None:
                result["reasoning"] = result["reasoning_content"] = reasoning
        elif role == "tool" and "tool_call_id" in message:
            result["tool_call_id"] = message["tool_call_id"]
        if isinstance(message.get("name"), str):
            result["name"] = message["name"]
        return result

    def _content(self, content: Any) -> Any:
        parts = content if isinstance(content, list) else [content]
        texts = [
            part.get(TEXT_OF.get(str(part.get("type")), "text")) if isinstance(part, dict) else part for part in parts
        ]
        kept = [text for text in texts if isinstance(text, str)]
        if self._lists_content:
            return [{"type": "text", "text": text} for text in kept]
        return "\n".join(text for text in kept if text)


def _tag(conversation: list[dict[str, Any]]) -> None:
    """Put the tag behind the last message's text."""
    content = conversation[-1].get("content") if conversation else None
    if isinstance(content, list) and content:
        content[-1] = {**content[-1], "text": str(content[-1].get("text", "")) + TAG}
    elif isinstance(content, str) and content:
        conversation[-1]["content"] = content + TAG
    else:
        raise TemplateError("continue_final_message is set but the final message has no content to continue")


def _cut(text: str) -> str:
    """The rendering up to the tag."""
    place = text.rfind(TAG.strip())
    if place < 0:
        raise TemplateError("continue_final_message is set but the template leaves the final message out")
    return text[:place] if text.startswith(TAG, place) else text[:place].rstrip()


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A tool call whose arguments are an object, as templates want them, not the string that clients send."""
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {}
    told = {"arguments": arguments if isinstance(arguments, dict) else {}, "name": function.get("name")}
    return {"id": call.get("id"), "function": told, "type": "function"}
