"""Tokenizing with a model family's own library, for models that use neither a chat template nor ``transformers``.

Rules: only for chats that vLLM passes to that library as the client sent them. vLLM's conversions of other routes'
bodies are not reimplemented here.
"""

from __future__ import annotations

from array import array
from typing import Protocol

from gateway.core.prompt import ChatInput
from gateway.tokens.reasons import Unrenderable, Why


class Native(Protocol):
    """Blocking; each method may be called from several threads at once. ``texts``: ``text`` is supported, too.

    ``longest_token``: the most characters that one id stands for.
    """

    texts: bool
    longest_token: int

    def chat(self, chat: ChatInput, most: int) -> array[int]:
        """The ids. Raises Unrenderable; for messages of more than ``most`` characters before any is encoded."""
        ...

    def text(self, text: str, *, add_special_tokens: bool) -> array[int]:
        """The ids of a completion's prompt."""
        ...


def refuse_converted(chat: ChatInput) -> None:
    """Raises Unrenderable for a chat that came by another route than chat completions, or brings a template."""
    if chat.template is not None:
        raise Unrenderable(Why.REQUEST_TEMPLATE)
    if chat.built or chat.system_first or chat.thinking_disabled:
        raise Unrenderable(Why.RENDERER)
