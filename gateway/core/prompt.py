"""A prompt before and after tokenizing.

``api`` makes one of the inputs from a body, ``tokens`` makes a ``Prompt`` of it, ``kvcache`` makes block keys of that.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

BYTES_PER_TOKEN = 4
"""Of an estimate: English text is 3.5 to 4.5 bytes a token in the vocabularies of Llama, Qwen and GPT, and four bytes
are one uint32, so that a prompt's bytes can be used in place of its token ids."""

BILLING_HEADER = "x-anthropic-billing-header"
"""Begins a system text that Claude Code changes with each request; vLLM drops the text."""


class NotConvertible(Exception):
    """A body that vLLM would refuse, or from which it would make another prompt each time. The prompt's tokens are not
    known. If it is to be refused, the engine does so."""


class KnownMessages:
    """Messages with which several chats begin: the same objects in each of them. ``before``: the first of these, if
    they were known before; None: there are none. ``tokens`` keeps their text as long as they are kept elsewhere."""

    __slots__ = ("__weakref__", "before", "messages")

    def __init__(self, messages: Sequence[Mapping[str, Any]], before: KnownMessages | None = None) -> None:
        self.messages = messages
        self.before = before


class ChatInput(msgspec.Struct, frozen=True):
    """Messages as the client sent them (parsed JSON), with what changes their rendering.

    ``raw`` is the messages' JSON as sent: what an estimate is made of, and nothing else. So it may be a part of the
    body that is not copied before: ``bytes(raw)``.
    """

    messages: Sequence[Mapping[str, Any]]
    raw: bytes | msgspec.Raw
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: Any = None
    documents: Sequence[Mapping[str, Any]] | None = None
    template: str | None = None
    template_kwargs: Mapping[str, Any] = msgspec.field(default_factory=dict)
    reasoning_effort: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    truncated: bool = False
    """The body asks for truncation: the engine's ids are not the whole rendering's."""
    built: bool = False
    """The messages are what vLLM itself builds of another route's input: its chat models, which put a client's keys
    into their own order, never see them."""
    system_first: bool = False
    """All system messages become the first one, if the template takes none later (``/v1/messages``)."""
    known: KnownMessages | None = None
    """The first of the messages, if they are known from earlier chats."""
    thinking_disabled: bool = False
    """The reasoning effort is the one with which the template does not think (``/v1/messages``)."""


class TextInput(msgspec.Struct, frozen=True):
    """One or more prompts as text (``/v1/completions``)."""

    texts: tuple[str, ...]
    add_special_tokens: bool = True
    truncated: bool = False


class TokenInput(msgspec.Struct, frozen=True):
    """One or more prompts that the client tokenized itself."""

    ids: tuple[Sequence[int], ...]


class OpaqueInput(msgspec.Struct, frozen=True):
    """Anything else: only its bytes are known (embeddings' input, audio, responses, ...)."""

    raw: bytes
    why: str
    """Why there are no tokens: a short word for the metric's label, such as ``route`` or ``multipart``."""


PromptInput: TypeAlias = ChatInput | TextInput | TokenInput | OpaqueInput


class MediaItem(NamedTuple):
    """An image, a sound or a video in a prompt: its first token's place, and the engine's own name for it."""

    offset: int
    identifier: str


BYTES_PER_ID = 4
"""Of a token id in an ``array('I')``."""

KEYS_KEPT = 2
"""Lists of block keys that are kept of the same ids: without an adapter and with one."""


class KnownPrefix:
    """The first ``count`` ids of many prompts. ``keys``: keys of their whole blocks, as ``array('Q')``, and the ids
    behind these blocks, by the tokens of a block and the key before the first. ``kvcache`` keeps them here, at most
    ``KEYS_KEPT``."""

    __slots__ = ("count", "keys")

    def __init__(self, count: int) -> None:
        self.count = count
        self.keys: dict[tuple[int, int], tuple[array[int], array[int]]] = {}


class PrefixedIds(msgspec.Struct, eq=False):
    """Token ids that begin with a known ``prefix``. Most of them are never read: its block keys are known. Equal to an
    array of the same ids.

    ``pieces``: the prefix's ids, uint32, which other prompts share. ``rest``: the ids behind. ``whole``: all of them,
    once they were joined.
    """

    prefix: KnownPrefix
    pieces: Sequence[bytes]
    rest: array[int]
    whole: array[int] | None = None

    def __len__(self) -> int:
        return self.prefix.count + len(self.rest)

    def __eq__(self, other: object) -> bool:
        return joined(self) == (joined(other) if isinstance(other, PrefixedIds) else other)


Ids: TypeAlias = "array[int] | PrefixedIds"
"""uint32 token ids. Who reads them calls ``joined``."""


def joined(ids: Ids) -> array[int]:
    """``ids`` in one piece, which the caller must not change."""
    if not isinstance(ids, PrefixedIds):
        return ids
    if ids.whole is None:
        ids.whole = array("I", b"".join(ids.pieces)) + ids.rest
    return ids.whole


NOWHERE: frozenset[str] = frozenset()


class Prompt(msgspec.Struct, frozen=True):
    """What the engine will see, or an estimate of it.

    ``ids``: token ids of the first prompt. Where ``exact`` is false they are the prompt's
    bytes, four to an id: equal prefixes still have equal leading ids, and no such id is ever compared with an engine's.
    ``count``: tokens of all prompts together. ``why``: the reason for an estimate, empty if there is none.
    ``single``: the body holds one prompt, so that expected and reported hits can be compared.
    ``own``: the ids that our tokenizer made of one prompt, to be compared with the engine's; they are ``ids`` unless
    they are not trusted. None: the client gave ids, or there are none.

    ``differing``: names of endpoints whose engines make other ids of such prompts: what they hold is estimated.

    ``media``: in order, if the engine reported them: then all of ``ids`` are the engine's own.

    ``exact`` with a ``why``: only the first ids are the engine's, up to an image. The others stand in for what only the
    engine knows: they say whether two prompts are alike, never equal an engine's ids, and ``count`` is an estimate.
    """

    ids: Ids
    count: int
    exact: bool
    why: str = ""
    single: bool = True
    own: Ids | None = None
    differing: frozenset[str] = NOWHERE
    media: tuple[MediaItem, ...] = ()

    @property
    def whole(self) -> bool:
        """Ids and count are the engine's to the last."""
        return self.exact and not self.why


def estimate(raw: bytes, why: str) -> Prompt:
    """An estimate for a prompt without tokens: one id for every four bytes, the rest dropped."""
    whole = len(raw) // BYTES_PER_TOKEN * BYTES_PER_TOKEN
    ids = array("I")
    ids.frombytes(memoryview(raw)[:whole])
    return Prompt(ids=ids, count=max(1, len(raw) // BYTES_PER_TOKEN), exact=False, why=why)
