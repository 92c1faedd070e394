"""A chat to the text that vLLM 0.32 tokenizes for it.

Source: vLLM 0.32.0, ``vllm/renderers/hf.py`` and ``online_renderer.py``: which template, which arguments in which
order, and two steps: render, then encode. Rules: blocking; the template is the model's or the configuration's, never a
client's (transformers renders it in jinja's sandbox, which does not bound its time).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from typing import Any

from gateway.framework import ChatInput
from gateway.tokens.content_format import content_format_of, supports_developer, variables_of
from gateway.tokens.conversation import converse, developers_to_system
from gateway.tokens.loading import Loaded
from gateway.tokens.reasons import Unrenderable, Why
from gateway.tokens.settings import TokenSettings
from gateway.tokens.tools import dump_tools

log = logging.getLogger("kvgate.tokens")

RESERVED = frozenset(
    {
        "chat_template",
        "conversation",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Arguments of ``apply_chat_template`` that are no business of a client's ``chat_template_kwargs``: vLLM refuses some,
and others make it return something else."""


class Renderer:
    """Renders one model's chats."""

    def __init__(self, loaded: Loaded, settings: TokenSettings) -> None:
        self._tokenizer = loaded.tokenizer
        self._template = loaded.template
        self._toolless = loaded.toolless_template
        self._format = settings.content_format
        self._defaults = dict(settings.chat_template_kwargs)
        self._parameters = frozenset(inspect.signature(loaded.tokenizer.apply_chat_template).parameters)

    def render(self, chat: ChatInput) -> str:
        """The text.

        Raises:
            Unrenderable: it cannot be had; says why.
        """
        if chat.template is not None:
            raise Unrenderable(Why.REQUEST_TEMPLATE)
        tools = None if chat.tools is None else dump_tools(chat.tools)
        template = self._pick(tools)
        conversation = converse(chat.messages, content_format_of(template) if self._format == "auto" else self._format)
        if any(message["role"] == "developer" for message in conversation) and not supports_developer(template):
            conversation = developers_to_system(conversation)
        arguments = self._arguments(chat)
        try:
            accepted = self._parameters | variables_of(template)
            text = self._tokenizer.apply_chat_template(
                conversation,
                tools=tools,
                chat_template=template,
                tokenize=False,
                **{name: value for name, value in arguments.items() if name in accepted},
            )
        except Exception as error:  # a template can make anything raise; vLLM answers 400 to all of it
            log.debug("a chat template failed: %s", type(error).__name__)
            raise Unrenderable(Why.TEMPLATE_ERROR) from error
        if not isinstance(text, str):
            raise Unrenderable(Why.TEMPLATE_ERROR)
        return text

    def _pick(self, tools: list[dict[str, Any]] | None) -> str:
        """The configured one; else a processor's, for chats without tools; else the tokenizer's."""
        if self._template is not None:
            return self._template
        if tools is None and self._toolless is not None:
            return self._toolless
        try:
            template: str = self._tokenizer.get_chat_template(None, tools=tools)
        except ValueError as error:
            raise Unrenderable(Why.NO_TEMPLATE) from error
        return template

    def _arguments(self, chat: ChatInput) -> Mapping[str, Any]:
        """vLLM's merge: the configured, then the client's, then the body's own fields; null and "auto" set nothing."""
        fields = {
            "add_generation_prompt": chat.add_generation_prompt,
            "continue_final_message": chat.continue_final_message,
            "documents": chat.documents,
            "reasoning_effort": chat.reasoning_effort,
        }
        if chat.reasoning_effort is not None and "enable_thinking" not in chat.template_kwargs:
            fields["enable_thinking"] = chat.reasoning_effort != "none"
        given = {**chat.template_kwargs, **_set(fields)}
        if not RESERVED.isdisjoint(_set(given)):
            raise Unrenderable(Why.TEMPLATE_KWARGS)
        return {**self._defaults, **_set(given)}


def _set(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != "auto"}
