"""Chats of gpt-oss as token ids, by OpenAI's harmony library, from messages as vLLM 0.32 converts them.

Source: ``vllm/entrypoints/openai/parser/harmony_utils.py`` and ``OnlineRenderer._make_request_with_harmony`` of vLLM
0.32.0, which pins oss-harmony 0.0.11.

Rules: a conversation's ids are the ids of its messages, one after the other, so that each message is rendered once and
cached. The library's vocabulary is built in, and it releases the GIL while it encodes. The first message holds today's
date, from the engine's clock or ``VLLM_SYSTEM_START_DATE``.
"""

from __future__ import annotations

import json
import os
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from threading import Lock
from typing import Any

import openai_harmony as library

from gateway.core.prompt import ChatInput
from gateway.tokens.native import refuse_converted
from gateway.tokens.reasons import Unrenderable, Why
from gateway.tokens.tools import dump_tools

EFFORTS = {
    "low": library.ReasoningEffort.LOW,
    "medium": library.ReasoningEffort.MEDIUM,
    "high": library.ReasoningEffort.HIGH,
}
"""vLLM refuses others."""

LONGEST_TOKEN = 128
"""Bytes of the longest one in the library's vocabulary: spaces."""

OVERHEAD = 200
"""Bytes of a cached message beside its text and ids."""


@dataclass(frozen=True, slots=True)
class Part:
    """One harmony message: its author, channel, recipient and text."""

    role: str
    texts: tuple[str, ...]
    name: str | None = None
    channel: str | None = None
    recipient: str | None = None
    content_type: str | None = None

    def built(self) -> Any:
        author = library.Author.new(library.Role(self.role), self.name) if self.name is not None else None
        contents = [library.TextContent(text=text) for text in self.texts]
        if author is not None:
            message = library.Message.from_author_and_content(author, contents[0])
        else:
            message = library.Message.from_role_and_contents(library.Role(self.role), contents)
        if self.channel is not None:
            message = message.with_channel(self.channel)
        if self.recipient is not None:
            message = message.with_recipient(self.recipient)
        if self.content_type is not None:
            message = message.with_content_type(self.content_type)
        return message


@dataclass(frozen=True, slots=True)
class Preamble:
    """The system message: the reasoning effort and the date."""

    effort: str | None
    date: str

    def built(self) -> Any:
        content = library.SystemContent.new()
        if self.effort is not None:
            content = content.with_reasoning_effort(EFFORTS[self.effort])
        content = content.with_conversation_start_date(self.date)
        return library.Message.from_role_and_content(library.Role.SYSTEM, content)


@dataclass(frozen=True, slots=True)
class Instructions:
    """A developer message. ``tools``: their JSON; empty: none."""

    text: str | None
    tools: str = ""

    def built(self) -> Any:
        content = library.DeveloperContent.new()
        if self.text is not None:
            content = content.with_instructions(self.text)
        if self.tools:
            described = [
                library.ToolDescription.new(
                    name=function["name"],
                    description=function["description"] or "",
                    parameters=function["parameters"],
                )
                for function in json.loads(self.tools)
            ]
            content = content.with_function_tools(described)
        return library.Message.from_role_and_content(library.Role.DEVELOPER, content)


Piece = Part | Preamble | Instructions


@cache
def _encoding() -> Any:
    """Loaded once in a process, which takes 0.3 s: it is the same for every model and after every reload."""
    return library.load_harmony_encoding(library.HarmonyEncodingName.HARMONY_GPT_OSS)


class Harmony:
    """``memory``: bytes for messages and their ids."""

    texts = False
    longest_token = LONGEST_TOKEN

    def __init__(self, memory: int) -> None:
        self._encoding = _encoding()
        self._memory = memory
        self._lock = Lock()
        self._known: OrderedDict[tuple[Piece, bool], array[int]] = OrderedDict()
        self._size = 0
        start, self._channel, self._constrain, self._message = (
            self._encoding.encode(token, allowed_special="all")[0]
            for token in ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>")
        )
        self._start = start
        self._end = array("I", [start, *self._encoding.encode("assistant")])

    def chat(self, chat: ChatInput, most: int) -> array[int]:
        refuse_converted(chat)
        pieces = without_old_thoughts(pieces_of(chat))
        if sum(map(_characters, pieces)) > most:
            raise Unrenderable(Why.TOO_LONG)
        has_tools = any(isinstance(piece, Instructions) and piece.tools for piece in pieces)
        ids = array("I")
        for piece in pieces:
            ids.extend(self._ids(piece, has_tools))
        return ids + self._end

    def text(self, text: str, *, add_special_tokens: bool) -> array[int]:
        raise Unrenderable(Why.RENDERER)

    def _ids(self, piece: Piece, has_tools: bool) -> array[int]:
        key = piece, has_tools
        with self._lock:
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                return known
        options = library.RenderOptions(conversation_has_function_tools=has_tools)
        ids = array("I", self._as_before(self._encoding.render(piece.built(), options)))
        with self._lock:
            if key not in self._known:
                self._known[key] = ids
                self._size += _size(piece, ids)
            while self._size > self._memory:
                (old, _), old_ids = self._known.popitem(last=False)
                self._size -= _size(old, old_ids)
        return ids

    def _as_before(self, ids: list[int]) -> list[int]:
        """A tool call's header in the order of the model's training, ``assistant to=f<|channel|>commentary json``.
        Since 0.0.10 the library puts the recipient behind the channel; vLLM undoes that."""
        if ids[0] != self._start or self._message not in ids:
            return ids
        end = ids.index(self._message)
        head = ids[:end]
        if self._channel not in head or self._constrain not in head:
            return ids
        channel, constrain = head.index(self._channel), head.index(self._constrain)
        decode, encode = self._encoding.decode, self._encoding.encode
        between, kind = decode(head[channel + 1 : constrain]), decode(head[constrain + 1 :])
        name, to, recipient = between[:-1].partition(" to=")
        if decode(head[1:channel]) != "assistant" or not between.endswith(" ") or not (name and to and recipient):
            return ids
        author = encode(f"assistant to={recipient}")
        return [self._start, *author, self._channel, *encode(f"{name} {kind}"), *ids[end:]]


def pieces_of(chat: ChatInput) -> list[Piece]:
    """The messages that vLLM makes from a chat's body. Raises Unrenderable for what vLLM refuses, and for content that
    is not text."""
    effort = chat.reasoning_effort
    if effort is not None and effort not in EFFORTS:
        raise Unrenderable(Why.TEMPLATE_ERROR)
    messages: Sequence[Mapping[str, Any]] = chat.messages
    instructions = None
    if messages and messages[0].get("role") in ("system", "developer"):
        instructions, messages = _flat(messages[0].get("content")), messages[1:]
    tools = "" if chat.tools is None else json.dumps([tool["function"] for tool in dump_tools(chat.tools)])
    date = os.environ.get("VLLM_SYSTEM_START_DATE") or datetime.now().strftime("%Y-%m-%d")
    pieces: list[Piece] = [Preamble(effort, date)]
    if instructions or chat.tools:
        pieces.append(Instructions(instructions, tools))
    names = {call.get("id"): _function(call).get("name") for one in messages for call in _calls(one)}
    for message in messages:
        pieces += _of_message(message, names)
    return pieces


def without_old_thoughts(pieces: list[Piece]) -> list[Piece]:
    """Drop the analysis before the last answer: the model was not trained to see it."""
    finals = [place for place, one in enumerate(pieces) if _is(one, "final")]
    last = finals[-1] if finals else -1
    return [one for place, one in enumerate(pieces) if place >= last or not _is(one, "analysis")]


def _is(piece: Piece, channel: str) -> bool:
    """Only an assistant's messages have these channels."""
    return isinstance(piece, Part) and piece.channel == channel


def _of_message(message: Mapping[str, Any], names: Mapping[Any, Any]) -> Iterator[Piece]:
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        name = names.get(message.get("tool_call_id", ""), "")
        result = _flat(content) or ""
        yield Part("tool", (result,), name=f"functions.{name}", channel="commentary", recipient="assistant")
    elif role == "assistant":
        yield from _of_assistant(message, content)
    elif role in ("system", "developer"):
        if (text := _flat(content)) is not None:
            yield Instructions(text)
    elif role == "user":
        yield Part("user", _texts(content))
    else:
        raise Unrenderable(Why.MESSAGES)


def _of_assistant(message: Mapping[str, Any], content: Any) -> Iterator[Piece]:
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None and not isinstance(reasoning, str):
        raise Unrenderable(Why.MESSAGES)
    thought = [Part("assistant", (reasoning,), channel="analysis")] if reasoning else []
    if calls := _calls(message):
        if text := _flat(content):
            yield Part("assistant", (text,), channel="commentary")
        yield from thought
        for call in calls:
            function = _function(call)
            arguments = function.get("arguments", "") or ""
            if not isinstance(arguments, str):
                raise Unrenderable(Why.MESSAGES)
            recipient = f"functions.{function.get('name', '')}"
            yield Part("assistant", (arguments,), channel="commentary", recipient=recipient, content_type="json")
        return
    yield from thought
    texts = _texts(content)
    if texts and texts[0]:
        yield Part("assistant", texts, channel="final")


def _calls(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, list | tuple) or not all(isinstance(call, Mapping) for call in calls):
        raise Unrenderable(Why.MESSAGES)
    return calls


def _function(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call.get("function", {})
    if not isinstance(function, Mapping):
        raise Unrenderable(Why.MESSAGES)
    return function


def _flat(content: Any) -> str | None:
    """All its texts as one; None: it has none."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts = [text for part in content if (text := _text(part)) is not None]
    return "".join(texts) if texts else None


def _texts(content: Any) -> tuple[str, ...]:
    """Each of its texts."""
    if content is None or isinstance(content, str):
        return (content or "",)
    if not isinstance(content, list):
        raise Unrenderable(Why.MESSAGES)
    return tuple(_text(part) or "" for part in content)


def _text(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping) or part.get("type", "text") != "text":
        raise Unrenderable(Why.MESSAGES)
    text = part.get("text")
    if text is not None and not isinstance(text, str):
        raise Unrenderable(Why.MESSAGES)
    return text


def _characters(piece: Piece) -> int:
    """Characters that become ids as they are; the library writes tools in its own form."""
    match piece:
        case Part():
            return sum(map(len, piece.texts))
        case Instructions():
            return len(piece.text or "")
        case _:
            return 0


def _size(piece: Piece, ids: array[int]) -> int:
    tools = len(piece.tools) if isinstance(piece, Instructions) else 0
    return OVERHEAD + _characters(piece) + tools + ids.itemsize * len(ids)
