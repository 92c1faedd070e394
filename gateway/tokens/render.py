"""Renders a chat to the text that vLLM 0.32 tokenizes for it.

Source: vLLM 0.32.0, ``vllm/renderers/hf.py`` and ``online_renderer.py``: the choice of the template, the arguments and
their order, and two steps: render, then encode; and ``apply_chat_template`` of ``transformers`` 5.16 to 5.19, which
vLLM calls. Every chat is rendered in our own jinja environment (``environment``), whatever its options and the
installed version of the library. Rules: blocking; the template is the model's or the configuration's, never a client's
(jinja's sandbox does not bound its time).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from math import inf
from typing import Any

from jinja2 import TemplateError
from jinja2.runtime import Context
from msgspec.structs import replace

from gateway.core.prompt import ChatInput
from gateway.framework import Clock
from gateway.tokens.content_format import content_format_of, supports_developer, takes_later_systems, variables_of
from gateway.tokens.continuation import cut_at_tag, tag_end
from gateway.tokens.conversation import (
    ContentFormat,
    Media,
    Message,
    converse,
    developers_to_system,
    join_systems,
)
from gateway.tokens.environment import ChatEnvironment
from gateway.tokens.known_text import KnownRendering, KnownText, KnownTexts, NotKnown
from gateway.tokens.loading import Loaded
from gateway.tokens.message_loop import SplitTemplate, split_loop
from gateway.tokens.reasons import Unrenderable, Why
from gateway.tokens.settings import TokenSettings
from gateway.tokens.tools import dump_tools

log = logging.getLogger("kvgate.tokens")

RESERVED = frozenset(
    {
        "chat_template",
        "conversation",
        "conversations",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Arguments of ``apply_chat_template`` that a client may not set in ``chat_template_kwargs``: vLLM refuses some, and
others change what it returns."""

ARGUMENTS = frozenset({"add_generation_prompt", "continue_final_message", "documents"})
"""Arguments of ``apply_chat_template`` that vLLM passes whether or not a template names them. Of all others it passes
those that are variables of the template."""

TEMPLATES_KEPT = 8
"""Compiled templates of one model: the configuration's, a processor's, one with and one without tools."""

SAMPLE = 512
"""One chat in this many of those whose beginning is known is rendered whole, too: 0.2 us for each of 128 KB."""

EFFORTS = ("low", "medium", "high", "xhigh", "max")
"""Reasoning efforts in Anthropic's dialect."""


class Renderer:
    """Renders one model's chats."""

    def __init__(self, loaded: Loaded, settings: TokenSettings, clock: Clock | None = None) -> None:
        """``clock``: what a template's ``strftime_now`` reads; None: the machine's."""
        self._tokenizer = loaded.tokenizer
        self._template = loaded.template
        self._toolless = loaded.toolless_template
        self._format = settings.content_format
        self._defaults = dict(settings.chat_template_kwargs)
        self._chosen: dict[bool, str] = {}  # templates, with tools and without
        environment = ChatEnvironment(clock)
        self._compile = lru_cache(TEMPLATES_KEPT)(environment.from_string)
        self._split = lru_cache(TEMPLATES_KEPT)(partial(split_loop, environment))
        self._known = KnownTexts()
        self._name = settings.tokenizer
        self._knows = True
        self._failing: set[SplitTemplate] = set()
        self._until_sample = SAMPLE
        # The library builds a new dict at each access. The content never changes, so one copy is kept.
        self._special = dict(loaded.tokenizer.special_tokens_map)
        self._thoughtless: str | None = None
        self._systems_first: bool | None = None

    def render(self, chat: ChatInput, most: float = inf, media: Media = "refused", least_known: int = 0) -> str:
        """The chat's text. ``media``: as for ``converse``. ``least_known``: only what is behind so many messages is to
        be rendered, which ``known`` has told; 0: the whole chat may be.

        Raises:
            NotKnown: more of it would have to be rendered.
            Unrenderable: it cannot be rendered, or the text has more than ``most`` characters; says why.
        """
        if chat.template is not None:
            raise Unrenderable(Why.REQUEST_TEMPLATE)
        if chat.thinking_disabled:
            chat = replace(chat, reasoning_effort=self._thoughtless_effort(), thinking_disabled=False)
        tools = None if chat.tools is None else dump_tools(chat.tools)
        template = self._chosen.get(tools is not None) or self._choose(tools is not None)
        messages = chat.messages
        if chat.system_first and self._wants_systems_first():
            messages = join_systems(messages)
        content_format = content_format_of(template) if self._format == "auto" else self._format
        known, found = chat.known, list[KnownText]()
        split = None if known is None or media != "refused" else self._split_of(chat, template)
        if known is not None and split is not None:
            found = self._known.find(known, split)
        if least_known and (not found or len(found[0].conversation) < least_known or self._samples):
            raise NotKnown
        if not found:
            conversation = converse(messages, content_format, built=chat.built, media=media)
            new: Sequence[Message] = conversation
        else:
            first = found[0].conversation
            new = converse(messages[len(first) :], content_format, built=chat.built, media=media)
            conversation = [*first, *new]
        for message in new:
            if message["role"] == "developer" and not supports_developer(template):
                if least_known:
                    raise NotKnown
                conversation, split = developers_to_system(conversation), None
                break
        given: Mapping[str, Any]
        if chat.template_kwargs or chat.documents is not None or chat.reasoning_effort is not None or self._defaults:
            given = self._arguments(chat)
        else:  # as most chats have it
            given = {
                "add_generation_prompt": chat.add_generation_prompt,
                "continue_final_message": chat.continue_final_message,
            }
        try:
            if not conversation:
                raise ValueError("a chat without messages")
            variables = variables_of(template)
            seen = {"add_generation_prompt": False, "documents": None, **self._special}
            for name, value in given.items():
                if name not in variables and name not in ARGUMENTS:
                    continue
                seen[name] = value
            if seen["documents"] is not None and not all(isinstance(one, dict) for one in seen["documents"]):
                raise TypeError("documents are objects")
            final = None
            if seen.pop("continue_final_message", False):
                if seen["add_generation_prompt"]:
                    raise ValueError("a message cannot both end and go on")
                conversation, final = tag_end(conversation, template)
            seen = dict(messages=conversation, tools=tools, **seen)
            behind = failing = None
            if known is not None and split is not None:
                try:
                    rendering = KnownRendering(self._known, split, known, found, conversation, whole=not least_known)
                    behind = rendering.text(seen)
                    self._until_sample -= 1
                except NotKnown:
                    raise
                except Exception as error:  # the template's own, which it raises again, or one of the other form alone
                    if least_known:
                        raise NotKnown from error
                    failing = split
            if behind is None or self._until_sample <= 0:
                compiled = self._compile(template)
                # The context that ``compiled.new_context`` makes, without two functions on the way.
                context = Context(compiled.environment, {**compiled.globals, **seen}, compiled.name, compiled.blocks)
                text = "".join(compiled.root_render_func(context))
                if failing is not None:
                    self._switch_off(failing)
                if behind is not None:
                    self._compare(behind, text)
            else:
                text = behind
            if final is not None:
                text = cut_at_tag(text, final)
        except NotKnown:
            raise
        except Exception as error:  # a template can raise anything; vLLM answers 400 to any exception
            log.debug("a chat template failed: %s", type(error).__name__)
            raise Unrenderable(Why.TEMPLATE_ERROR) from error
        if len(text) > most:
            raise Unrenderable(Why.TOO_LONG)
        return text

    def prepare(self) -> None:
        """Compile the templates, which takes some 50 ms each. Blocking."""
        for with_tools in (False, True):
            try:
                template = self._choose(with_tools)
                self._compile(template)
                self._split(template)
            except (Unrenderable, TemplateError, RecursionError):  # each chat will be told why
                continue

    def known(self, chat: ChatInput) -> int:
        """How many of the first messages need not be rendered if what is before them is as it was: ``least_known``."""
        template = self._chosen.get(chat.tools is not None)
        if chat.known is None or template is None or self._samples:
            return 0
        split = self._split_of(chat, template)
        found = None if split is None else self._known.find(chat.known, split)
        return len(found[0].conversation) if found else 0

    def content_format(self, chat: ChatInput) -> ContentFormat:
        """The form in which the template takes the contents of ``chat``. Raises Unrenderable if there is none."""
        template = self._choose(chat.tools is not None)
        return content_format_of(template) if self._format == "auto" else self._format

    @property
    def special_tokens(self) -> list[str]:
        """The tokenizer's, as text."""
        return [str(token) for token in self._tokenizer.all_special_tokens]

    @property
    def _samples(self) -> bool:
        """The next chat whose beginning is known is rendered whole, too."""
        return self._until_sample <= 1

    def _split_of(self, chat: ChatInput, template: str) -> SplitTemplate | None:
        """The form of the template that can begin behind the chat's known messages."""
        if chat.continue_final_message or not self._knows:
            return None
        split = self._split(template)
        return None if split in self._failing else split

    def _compare(self, behind: str, text: str) -> None:
        """``behind``: the text as it is made behind known messages. ``text``: made as a whole."""
        self._until_sample = SAMPLE
        if behind != text:
            self._knows = False
            log.warning("%s: a chat's text is another one behind known messages: chats are rendered whole", self._name)

    def _switch_off(self, split: SplitTemplate) -> None:
        """It raises where the template as a whole does not."""
        self._failing.add(split)
        log.warning("%s: a chat cannot be rendered behind known messages: chats are rendered whole", self._name)

    def _wants_systems_first(self) -> bool:
        """As in vLLM: if there are two templates, both are looked at, whichever of them a chat uses."""
        if self._systems_first is None:
            templates = {self._choose(False), self._choose(True)}
            self._systems_first = not all(map(takes_later_systems, templates))
        return self._systems_first

    def _thoughtless_effort(self) -> str:
        """The reasoning effort that switches thinking off: ``none`` if the template knows it, else ``low``.

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

    def _choose(self, with_tools: bool) -> str:
        """The template: the configured one; else a processor's, for chats without tools; else the tokenizer's."""
        template: str | None = self._template
        if template is None and not with_tools:
            template = self._toolless
        if template is None:
            try:
                template = self._tokenizer.get_chat_template(None, tools=[] if with_tools else None)
            except ValueError as error:
                raise Unrenderable(Why.NO_TEMPLATE) from error
        self._chosen[with_tools] = template
        return template

    def _arguments(self, chat: ChatInput) -> Mapping[str, Any]:
        """Merge arguments as vLLM does: the configured ones, then the client's, then the body's own fields. Null and
        "auto" set nothing."""
        fields = dict(chat.template_kwargs)
        fields["add_generation_prompt"] = chat.add_generation_prompt
        fields["continue_final_message"] = chat.continue_final_message
        if chat.documents is not None:
            fields["documents"] = chat.documents
        effort = chat.reasoning_effort
        if effort is not None:
            fields.setdefault("enable_thinking", effort != "none")
            if effort != "auto":
                fields["reasoning_effort"] = effort
        given = dict(self._defaults)
        for name, value in fields.items():
            if value is not None and value != "auto":
                if name in RESERVED:
                    raise Unrenderable(Why.TEMPLATE_KWARGS)
                given[name] = value
        return given
