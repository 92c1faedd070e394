"""Finds the prompt in a JSON body, per kind of route.

Rules: only what changes the prompt's tokens is read. Fields are joined in the order in which they are rendered (tools
before messages), so that two requests with equal prefixes have equal leading bytes. A wrong type is the client's error
if routing needs the value; if not, the prompt is an ``OpaqueInput``.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Annotated, Any, TypeVar

import msgspec

from gateway.api import anthropic, responses
from gateway.api.field_filter import Fields
from gateway.api.lax import truth
from gateway.core.prompt import (
    ChatInput,
    KnownMessages,
    NotConvertible,
    OpaqueInput,
    PromptInput,
    TextInput,
    TokenInput,
)
from gateway.errors import ClientError
from gateway.framework import Kind

OPAQUE_FIELDS: dict[Kind, tuple[str, ...]] = {
    Kind.RESPONSES: ("tools", "instructions", "previous_response_id", "input"),
    Kind.MESSAGES: ("tools", "system", "messages"),
    Kind.EMBEDDING: ("messages", "input"),
    Kind.RERANK: ("query", "documents"),
    Kind.SCORE: ("query", "queries", "text_1", "data_1", "documents", "text_2", "data_2"),
    Kind.TOKENIZE: ("tools", "messages", "prompt"),
    Kind.DETOKENIZE: ("tokens",),
}
"""The fields that hold the prompt, in rendering order."""

MAX_PROMPTS = 4096
"""The most prompts of one completion: several times what an engine runs at once. Each adds to a tokenizer's batch."""

NULL = msgspec.Raw(b"null")
TRUE = msgspec.Raw(b"true")
FALSE = msgspec.Raw(b"false")

T = TypeVar("T")
_Id = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_Objects = list[dict[str, Any]]


class _ChatOptions(msgspec.Struct):
    """Optional fields with the types that vLLM 0.32 requires; the engine itself refuses a wrong one."""

    tools: _Objects | None = None
    tool_choice: Any = None
    documents: _Objects | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    truncate_prompt_tokens: int | None = None


_decoder: Callable[[Any], msgspec.json.Decoder[Any]] = cache(msgspec.json.Decoder)
"""Built once: to build a decoder costs more than to decode a short value."""

MESSAGES = msgspec.json.Decoder(_Objects)

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What a decoder raises for a value that is of another type, or malformed."""

_NO_OPTIONS = _ChatOptions()
_OPTION_NAMES = frozenset(_ChatOptions.__struct_fields__)
_BOOLEANS = frozenset({"add_generation_prompt", "continue_final_message", "add_special_tokens"})


def read_chat(
    fields: Fields, messages: Sequence[Mapping[str, Any]] | None = None, known: KnownMessages | None = None
) -> PromptInput:
    """The chat in a body's ``fields``. ``messages``: the value of that field, if it is parsed. ``known``: the first of
    them. Raises as ``READERS``."""
    if messages is None:
        messages = _messages(fields)
    raw: bytes | msgspec.Raw = fields["messages"]
    if "tools" in fields or "documents" in fields:
        raw = _joined(fields, ("tools", "documents", "messages"))
    options = _NO_OPTIONS
    try:
        if given := _OPTION_NAMES.intersection(fields):
            options = msgspec.convert({name: _option(name, fields[name]) for name in given}, _ChatOptions)
    except UNREADABLE:
        return OpaqueInput(raw=bytes(raw), why="malformed")
    return ChatInput(
        messages=messages,
        raw=raw,
        tools=options.tools,
        tool_choice=options.tool_choice,
        documents=options.documents,
        template=options.chat_template,
        template_kwargs=options.chat_template_kwargs or {},
        reasoning_effort=options.reasoning_effort,
        add_generation_prompt=options.add_generation_prompt,
        continue_final_message=options.continue_final_message,
        add_special_tokens=options.add_special_tokens,
        truncated=options.truncate_prompt_tokens is not None,
        known=known,
    )


def _option(name: str, raw: msgspec.Raw) -> Any:
    if name in _BOOLEANS and (found := truth(raw)) is not None:
        return found
    return msgspec.json.decode(raw)


def _anthropic(fields: Fields) -> PromptInput:
    messages = _messages(fields)
    return _converted(fields, Kind.MESSAGES, anthropic.FIELDS, anthropic.read_messages, messages=messages)


def _responses(fields: Fields) -> PromptInput:
    if fields.get("previous_response_id", NULL) != NULL:
        return OpaqueInput(raw=_joined(fields, OPAQUE_FIELDS[Kind.RESPONSES]), why="previous-response")
    return _converted(fields, Kind.RESPONSES, responses.FIELDS, responses.read_response)


def _opaque(kind: Kind, fields: Fields) -> PromptInput:
    return OpaqueInput(raw=_joined(fields, OPAQUE_FIELDS[kind]), why="route")


def _converted(
    fields: Fields,
    kind: Kind,
    names: tuple[str, ...],
    read: Callable[[dict[str, Any], bytes], ChatInput],
    **known: Any,
) -> PromptInput:
    """A chat that another route's body is converted to. ``known``: fields that are parsed already."""
    raw = _joined(fields, OPAQUE_FIELDS[kind])
    try:
        parsed = {name: msgspec.json.decode(fields[name]) for name in names if name in fields and name not in known}
        return read(parsed | known, raw)
    except (NotConvertible, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return OpaqueInput(raw=raw, why="malformed")


def _messages(fields: Fields) -> _Objects:
    raw = fields.get("messages", NULL)
    if raw == NULL:
        raise ClientError("messages is required", param="messages")
    try:
        messages = MESSAGES.decode(raw)
    except UNREADABLE as error:
        raise unreadable("messages", error) from None
    if not messages:
        raise ClientError("messages must not be empty", param="messages")
    return messages


def _completion(fields: Fields) -> PromptInput:
    embeds = fields.get("prompt_embeds", NULL)
    if embeds != NULL:
        return OpaqueInput(raw=bytes(embeds), why="embeds")  # if present, vLLM uses them first
    raw = fields.get("prompt", NULL)
    if raw == NULL:
        raise ClientError("prompt is required", param="prompt")
    truncated = fields.get("truncate_prompt_tokens", NULL) != NULL
    prompt = _texts_or_ids(raw)
    if isinstance(prompt, TokenInput):
        return OpaqueInput(raw=bytes(raw), why="truncated") if truncated else prompt
    return TextInput(
        prompt, add_special_tokens=truth(fields.get("add_special_tokens", TRUE)) is not False, truncated=truncated
    )


def _texts_or_ids(raw: msgspec.Raw) -> tuple[str, ...] | TokenInput:
    """One of vLLM's four forms, recognized by how they begin: "..", [".."], [1], [[1]]."""
    opening = bytes(memoryview(raw)[:64])
    first, second = opening[:1], opening[1:].lstrip()[:1]
    if first == b'"':
        return (decode(raw, str, "prompt"),)
    if first != b"[" or second == b"]":
        raise ClientError(
            "prompt must be a string, or a list of strings or token ids that is not empty", param="prompt"
        )
    if second == b'"':
        return tuple(_few(decode(raw, list[str], "prompt")))
    if second == b"[":
        return TokenInput(tuple(array("I", ids) for ids in _few(decode(raw, list[list[_Id]], "prompt"))))
    return TokenInput((array("I", decode(raw, list[_Id], "prompt")),))


def _few(prompts: list[T]) -> list[T]:
    if len(prompts) > MAX_PROMPTS:
        raise ClientError(
            f"prompt: {len(prompts)} prompts in one request; this gateway takes at most {MAX_PROMPTS}: send several.",
            param="prompt",
        )
    return prompts


def _joined(fields: Fields, names: tuple[str, ...]) -> bytes:
    return b"".join([fields[name] for name in names if name in fields])


def decode(raw: msgspec.Raw, kind: type[T], name: str) -> T:
    """A field's value as ``kind``.

    Raises:
        ClientError: it is of another type, or malformed; names the field.
    """
    try:
        value: T = _decoder(kind).decode(raw)
    except UNREADABLE as error:
        raise unreadable(name, error) from None
    return value


def unreadable(name: str, error: Exception) -> ClientError:
    """The error for a field whose value is ``UNREADABLE``."""
    if isinstance(error, RecursionError):
        return ClientError(f"{name} is nested too deeply", param=name)
    return ClientError(f"{name}: {error}", param=name)


READERS: Mapping[Kind, Callable[[Fields], PromptInput]] = {kind: partial(_opaque, kind) for kind in OPAQUE_FIELDS} | {
    Kind.CHAT: read_chat,
    Kind.COMPLETION: _completion,
    Kind.MESSAGES: _anthropic,
    Kind.RESPONSES: _responses,
}
"""By kind of route: gives the prompt in a body's ``fields``.

Raises:
    ClientError: messages are missing, empty or not objects; a completion's prompt is of no known form.
"""
