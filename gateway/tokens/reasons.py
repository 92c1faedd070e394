"""The reasons why a prompt is estimated and not tokenized: a fixed set of words, for the metric's label."""

from __future__ import annotations

from enum import StrEnum


class Why(StrEnum):
    """``gateway.api`` adds its own words for prompts that it cannot read: ``route``, ``multipart``, ``malformed``, ...

    A prompt that an engine will refuse (an unknown part, a broken tool) is among these: the refusal is the engine's.
    """

    NO_TOKENIZER = "no-tokenizer"  # none is configured
    NO_TEMPLATE = "no-template"  # a chat, and the tokenizer has no chat template
    RENDERER = "renderer"  # vLLM renders this model's chats in code of its own, or tokenizes it with another library
    UNTOLD = "untold"  # as renderer, and an engine has reported the ids of earlier turns, but not of this one
    TOO_LONG = "too-long"  # to encode it would take minutes and gigabytes, or no engine of the model takes it
    TRUNCATED = "truncated"  # the client asks for truncation, to a length that only the engine knows
    REQUEST_TEMPLATE = "request-template"  # the client brings a template: code that may run for ever
    TEMPLATE_KWARGS = "template-kwargs"  # the client sets arguments that are not the template's
    TEMPLATE_ERROR = "template-error"  # the template refused the messages, or failed
    MEDIA = "media"  # images, audio, video: only the engine's processor knows how many tokens they are
    MESSAGES = "messages"  # a message or a part of one that vLLM does not know
    TOOLS = "tools"  # a tool that is no function
    PARITY = "parity"  # the engines make other ids of this model's prompts than we do
    CLOSED = "closed"  # it still waited for a thread when the tokenizer was closed
    FAILED = "failed"  # an unexpected exception, which is logged


class Unrenderable(Exception):
    """The prompt's text or ids cannot be computed; ``why`` becomes the estimate's reason."""

    def __init__(self, why: Why) -> None:
        super().__init__(str(why))
        self.why = why
