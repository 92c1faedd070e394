"""A chat to the text that vLLM 0.32 tokenizes for it.

Source: vLLM 0.32.0, ``vllm/renderers/hf.py`` and ``online_renderer.py``: which template, which arguments in which
order, and two steps: render, then encode. Rules: blocking; the template is the model's or the configuration's, never a
client's (transformers renders it in jinja's sandbox, which does not bound its time).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gateway.framework import ChatInput
from gateway.tokens.content_format import content_format_of, supports_developer, takes_later_systems, variables_of
from gateway.tokens.conversation import (
    ContentFormat,
    Media,
    Message,
    converse,
    developers_to_system,
    join_systems,
)
from gateway.tokens.loading import Loaded
from gateway.tokens.quicken import quicken
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

WHOLE = frozenset({"conversations", "documents"})
"""Arguments of which ``apply_chat_template`` makes more than that it hands them to the template."""
LIBRARY = "transformers.tokenization_utils_base"
"""Where most tokenizers' ``apply_chat_template`` is defined; some models bring their own."""

EFFORTS = ("low", "medium", "high", "xhigh", "max")
"""Of thinking, in Anthropic's dialect."""


class Renderer:
    """Renders one model's chats."""

    def __init__(self, loaded: Loaded, settings: TokenSettings) -> None:
        self._tokenizer = loaded.tokenizer
        self._template = loaded.template
        self._toolless = loaded.toolless_template
        self._format = settings.content_format
        self._defaults = dict(settings.chat_template_kwargs)
        self._parameters = frozenset(inspect.signature(loaded.tokenizer.apply_chat_template).parameters)
        # A function of the class says where it was defined.
        kind = type(loaded.tokenizer)
        self._plain = kind.apply_chat_template.__module__ == kind.get_chat_template.__module__ == LIBRARY
        # The library makes it anew each time, and nobody changes it.
        self._special = dict(loaded.tokenizer.special_tokens_map)
        self._thoughtless: str | None = None
        self._systems_first: bool | None = None

    def render(self, chat: ChatInput, media: Media = "refused") -> str:
        """The text. ``media``: as for ``converse``.

        Raises:
            Unrenderable: it cannot be had; says why.
        """
        if chat.template is not None:
            raise Unrenderable(Why.REQUEST_TEMPLATE)
        if chat.thinking_disabled:
            chat = replace(chat, reasoning_effort=self._thoughtless_effort(), thinking_disabled=False)
        tools = None if chat.tools is None else dump_tools(chat.tools)
        template = self._pick(tools)
        messages = chat.messages
        if chat.system_first and self._wants_systems_first():
            messages = join_systems(messages)
        conversation = converse(messages, self._format_for(template), built=chat.built, media=media)
        if any(message["role"] == "developer" for message in conversation) and not supports_developer(template):
            conversation = developers_to_system(conversation)
        arguments = self._arguments(chat)
        try:
            variables = variables_of(template)
            given = {name: value for name, value in arguments.items() if name in variables or name in self._parameters}
            text = self._apply(template, conversation, tools, given)
        except Exception as error:  # a template can make anything raise; vLLM answers 400 to all of it
            log.debug("a chat template failed: %s", type(error).__name__)
            raise Unrenderable(Why.TEMPLATE_ERROR) from error
        if not isinstance(text, str):
            raise Unrenderable(Why.TEMPLATE_ERROR)
        return text

    def _apply(
        self, template: str, conversation: list[Message], tools: list[dict[str, Any]] | None, given: dict[str, Any]
    ) -> Any:
        """What ``apply_chat_template`` makes of it in transformers 5.16 to 5.19, one of which vLLM 0.32 has.

        There it hands on what it was given, but for the rare cases that are left to it here. From 5.20 on it first
        takes nulls from messages and gives their reasoning further names, for which it goes through all of them.
        """
        compiled = quicken(self._tokenizer.get_chat_template(template)) if self._plain and conversation else None
        if compiled is None or given.get("continue_final_message") or not WHOLE.isdisjoint(given):
            return self._tokenizer.apply_chat_template(
                conversation, tools=tools, chat_template=template, tokenize=False, **given
            )
        seen = {"add_generation_prompt": False, **self._special, **given}
        seen.pop("continue_final_message", None)
        return compiled.render(messages=conversation, tools=tools, documents=None, **seen)

    def content_format(self, chat: ChatInput) -> ContentFormat:
        """The form in which the template takes the contents of ``chat``. Raises Unrenderable if there is none."""
        return self._format_for(self._pick(None if chat.tools is None else dump_tools(chat.tools)))

    @property
    def special_tokens(self) -> list[str]:
        """The tokenizer's, as text."""
        return [str(token) for token in self._tokenizer.all_special_tokens]

    def _format_for(self, template: str) -> ContentFormat:
        return content_format_of(template) if self._format == "auto" else self._format

    def _wants_systems_first(self) -> bool:
        """As vLLM's, which asks both templates, if there are two, whatever a chat needs."""
        if self._systems_first is None:
            templates = {self._pick(None), self._pick([])}
            self._systems_first = not all(map(takes_later_systems, templates))
        return self._systems_first

    def _thoughtless_effort(self) -> str:
        """The effort that switches thinking off: ``none``, if the template knows it, else ``low``.

        Source: ``_probe_disabled_thinking_effort`` of vLLM 0.32.0 (``vllm/entrypoints/anthropic/serving.py``).
        """
        if self._thoughtless is None:
            none = self._probe("none")
            known = none is not None and all(self._probe(effort) != none for effort in EFFORTS)
            self._thoughtless = "none" if known else "low"
        return self._thoughtless

    def _probe(self, effort: str) -> str | None:
        try:
            return self.render(ChatInput([{"role": "user", "content": "Hi"}], b"", reasoning_effort=effort))
        except Unrenderable:
            return None

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
