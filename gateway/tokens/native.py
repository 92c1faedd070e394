"""What makes tokens of a model's prompts where that is no chat template and not ``transformers``: a family's library.

Rules: only what vLLM itself hands to that library as the client sent it; what its conversions of other routes make of
their input is not repeated here.
"""

from __future__ import annotations

from array import array
from typing import Protocol

from gateway.framework import ChatInput
from gateway.tokens.reasons import Unrenderable, Why
from gateway.tokens.settings import TokenSettings


class Native(Protocol):
    """Blocking; each method may be called in several threads at once. ``texts``: ``text`` works, too."""

    texts: bool

    def chat(self, chat: ChatInput) -> array[int]:
        """The ids. Raises Unrenderable."""
        ...

    def text(self, text: str, *, add_special_tokens: bool) -> array[int]:
        """The ids of a completion's prompt."""
        ...


def load_native(module: str, settings: TokenSettings) -> Native:
    """By the ``module`` of a family. Blocking. What its files can make it raise is raised."""
    if module == "openai_harmony":
        from gateway.tokens.harmony import Harmony

        return Harmony(settings.memory_bytes)
    from gateway.tokens.mistral import Mistral

    return Mistral(settings)


def refuse_converted(chat: ChatInput) -> None:
    """Raises Unrenderable for a chat that came by another route than chat completions, or brings a template."""
    if chat.template is not None:
        raise Unrenderable(Why.REQUEST_TEMPLATE)
    if chat.built or chat.system_first or chat.thinking_disabled:
        raise Unrenderable(Why.RENDERER)
