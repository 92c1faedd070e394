"""How a model's prompts become token ids. The settings must match the engines'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class ParitySettings:
    """``sample``: 0..1 of the answered prompts whose token ids are compared with the engine's own, after the answer and
    one at a time: each costs the engine's API process one more tokenization, and its GPU nothing."""

    sample: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.sample <= 1.0:
            raise ValueError("sample must be in 0..1")


@dataclass(frozen=True, slots=True)
class MediaSettings:
    """``render``: the token ids of each new chat with images are requested from an engine before the chat is placed. An
    engine then processes the images twice. ``timeout``: seconds that a client waits for that.
    """

    render: bool = False
    timeout: float = 2.0

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise ValueError("timeout must be above 0 seconds")


@dataclass(frozen=True, slots=True)
class ForwardSettings:
    """``forward``: engines get our ids where they would make the same of the prompt's text, and need not tokenize it
    again.

    ``ask``: the token ids of each new prompt that cannot be tokenized here are requested from an engine before the
    prompt is placed. It is then tokenized twice. ``ask_timeout``: seconds that a client waits for that; an idle API
    server tokenizes some 100,000 tokens a second.
    """

    forward: bool = False
    ask: bool = True
    ask_timeout: float = 1.0

    def __post_init__(self) -> None:
        if not self.ask_timeout > 0:
            raise ValueError("ask_timeout must be above 0 seconds")


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """``tokenizer``: a local folder or a hub id; None: lengths and prefixes are estimated from bytes.

    ``revision``: of a hub id. ``trust_remote_code``: let the tokenizer's repository run its Python here.
    ``chat_template``: a file that replaces the tokenizer's own, as ``vllm serve --chat-template``.
    ``chat_template_kwargs``: as ``--default-chat-template-kwargs``.
    ``content_format``: as ``--chat-template-content-format``.
    ``memory_bytes``: for texts and their ids, so that a conversation's next turn, or a known text with another end,
    encodes only what is new; about 14 bytes a token. The default remembers some 19 million tokens, which is more than
    half of the engines' blocks that the default index knows of (2 million of 16 tokens, each held about once); 0 keeps
    nothing.
    """

    tokenizer: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    content_format: Literal["auto", "string", "openai"] = "auto"
    memory_bytes: int = 256 * 1024 * 1024
    tokens: ForwardSettings = field(default_factory=ForwardSettings)
    parity: ParitySettings = field(default_factory=ParitySettings)
    media: MediaSettings = field(default_factory=MediaSettings)

    def __post_init__(self) -> None:
        if self.chat_template is not None and self.tokenizer is None:
            raise ValueError("chat_template needs tokenizer: without one, prompts are estimated")
        if self.tokens.forward and self.tokenizer is None:
            raise ValueError("tokens.forward needs tokenizer: without one there are no ids to send")
        if self.memory_bytes < 0:
            raise ValueError("memory_bytes must be at least 0")
