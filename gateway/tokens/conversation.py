"""Converts messages as a client sent them to messages as vLLM 0.32 passes them to a chat template.

Source: vLLM 0.32.0, ``vllm/renderers/chat_utils.py`` and ``hf.py``, and its pydantic models, which reorder keys: a
template that prints a whole tool call shows that order. Rules: pure; the input is never changed. ``Unrenderable`` is
raised for what vLLM would refuse, and for what only its media processor can count.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from gateway.core.prompt import BILLING_HEADER
from gateway.tokens.reasons import Unrenderable, Why

ContentFormat = Literal["string", "openai"]
Message = dict[str, Any]
Media = Literal["refused", "shown", "marked"]
"""How a media part is rendered. ``refused``: it raises Unrenderable. ``shown``: a template that takes parts gets the
part. ``marked``: ``MARK`` is put where its tokens begin: in the part's place, or, where contents are texts, before its
message's text."""
MARK = "\ue000media\ue001"
"""Characters that occur in no text. They are not blank, since templates strip blanks."""

TEXT_FIELDS: Mapping[str, str] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Part types that are text, and the field that holds it."""
SKIPPED_WITHOUT_TEXT = frozenset({"text", "refusal"})
MEDIA_FIELDS = frozenset(
    {
        "audio_embeds",
        "audio_url",
        "file",
        "image_embeds",
        "image_pil",
        "image_url",
        "input_audio",
        "input_image",
        "prompt_embeds",
        "video_embeds",
        "video_url",
    }
)
"""Types of parts that are media; also the fields that make a part one where its type is missing."""
MODALITIES: Mapping[str, str] = {
    "image_url": "image",
    "image_embeds": "image",
    "audio_embeds": "audio",
    "video_embeds": "video",
    "audio_url": "audio",
    "input_audio": "audio",
    "video_url": "video",
}
"""What a template sees as the type of media; by the field that holds them, in the order in which vLLM looks for it
where a part has no type. Embeddings of text and files are not among them."""
COMPLETED = frozenset({"developer", "tool"})
"""Roles whose messages become more, or another content, even if they have no other field."""
PART_FIELDS = MEDIA_FIELDS | {
    "closed",
    "data",
    "name",
    "prompt_cache_breakpoint",
    "refusal",
    "text",
    "thinking",
    "type",
    "uuid",
}
"""Fields of parts that vLLM knows; others pass through to a template that reads parts."""


def converse(
    messages: Sequence[Mapping[str, Any]],
    content_format: ContentFormat,
    *,
    built: bool = False,
    media: Media = "refused",
) -> list[Message]:
    """The conversation for a template that takes contents as one text (``string``) or as parts (``openai``).

    ``built``: as in ``ChatInput``.

    Raises:
        Unrenderable: a message holds media that are refused or unknown, or has a form that vLLM does not accept.
    """
    conversation: list[Message] = []
    for message in messages:
        role, given = message.get("role"), message.get("content")
        if not isinstance(role, str):
            raise Unrenderable(Why.MESSAGES)
        billed = role == "system" and isinstance(given, str) and given.startswith(BILLING_HEADER)
        if type(given) is str and content_format == "string" and not billed:
            out: Message = {"role": role, "content": given}  # as ``_content`` gives for a single text
        else:
            out = {"role": role, "content": _content(given, role, content_format, media)}
        if len(message) > 2 or given is None or role in COMPLETED:
            _complete(out, message, built)
        conversation.append(out)
    return conversation


def media_of(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The parts that are media, in order."""
    return [
        part
        for message in messages
        if isinstance(content := message.get("content"), list)
        for part in content
        if isinstance(part, Mapping) and _is_media(part)
    ]


def join_systems(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Join all system messages into the first one, with nothing between their texts. vLLM does so with Anthropic's
    messages if the template refuses later system messages."""
    texts = [message["content"] for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "".join(texts)}, *others] if texts else others


def developers_to_system(conversation: Sequence[Message]) -> list[Message]:
    """For templates without a developer role: developer messages become system messages, and all system messages are
    joined into the first message."""
    turned = [_as_system(message) if message["role"] == "developer" else message for message in conversation]
    places = [place for place, message in enumerate(turned) if message["role"] == "system"]
    # vLLM merges only if a system message is not the first, or follows one that has text.
    if not any(place > 0 for place in places):
        return turned
    texts = [text for place in places if (text := _plain(turned[place].get("content") or ""))]
    others = [message for message in turned if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def _as_system(message: Message) -> Message:
    return {name: value for name, value in (message | {"role": "system"}).items() if name != "tools"}


def _plain(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)


def _complete(out: Message, message: Mapping[str, Any], built: bool) -> None:
    """Add to ``out`` what ``message`` holds beside its role and content."""
    role = out["role"]
    if role == "assistant":
        _add_assistant(out, message, built)
    elif role == "tool":
        if "tool_call_id" in message:
            out["tool_call_id"] = message["tool_call_id"]
        content = out["content"]
        if isinstance(content, list) and all(part["type"] == "text" for part in content):
            out["content"] = "\n".join(part["text"] for part in content)
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            out[name] = message[name]
    if role == "developer":
        out["tools"] = message.get("tools") if built else _developers_tools(message.get("tools"))


def _content(given: Any, role: str, content_format: ContentFormat, media: Media) -> Any:
    parts = _parts(given)
    if role == "system":
        parts = _without_billing(parts)
    content = [read for part in parts if (read := _part(part, content_format, media))]
    if content_format == "openai":
        return content
    # vLLM puts the placeholders of media before a message's text, except for models that it knows to interleave them.
    marks = [text for text in content if text is MARK]
    return "\n".join([*marks, *(text for text in content if text is not MARK)])


def _parts(content: Any) -> Sequence[Any]:
    if content is None:
        return ()
    if isinstance(content, str):
        return ({"type": "text", "text": content},)
    if isinstance(content, list):
        return content
    raise Unrenderable(Why.MESSAGES)


def _without_billing(parts: Iterable[Any]) -> list[Any]:
    kept: list[Any] = []
    for part in parts:
        text = part if isinstance(part, str) else part.get("text") if _is_text(part) else None
        if not (isinstance(text, str) and text.startswith(BILLING_HEADER)):
            kept.append(part)
        elif rest := text.partition("\n")[2]:
            kept.append(rest if isinstance(part, str) else {**part, "text": rest})
    return kept


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text"


def _is_media(part: Mapping[str, Any]) -> bool:
    kind = part.get("type")
    untyped = kind is None or part.get("uuid") is not None
    return kind in MEDIA_FIELDS or (untyped and not MEDIA_FIELDS.isdisjoint(part))


def _media(part: Mapping[str, Any], content_format: ContentFormat, media: Media) -> Any:
    kind = part.get("type")
    if not isinstance(kind, str) or part.get("uuid") is not None:
        kind = next((name for name in MODALITIES if name in part), None)
    modality = "image" if kind == "input_image" else MODALITIES.get(kind or "")
    if media == "refused" or modality is None:
        raise Unrenderable(Why.MEDIA)
    if media == "shown":
        return {"type": modality} | _unknown_fields(part) if content_format == "openai" else None
    return {"type": "text", "text": MARK} if content_format == "openai" else MARK


def _unknown_fields(part: Mapping[str, Any]) -> Message:
    return {name: part[name] for name in part if name not in PART_FIELDS}


def _part(part: Any, content_format: ContentFormat, media: Media) -> Any:
    """A part for the template, or a false value if it is left out."""
    if isinstance(part, str):
        return {"type": "text", "text": part} if content_format == "openai" else part
    if not isinstance(part, Mapping):
        raise Unrenderable(Why.MESSAGES)
    if _is_media(part):
        return _media(part, content_format, media)
    kind = part.get("type")
    if part.get("uuid") is not None or not isinstance(kind, str):
        raise Unrenderable(Why.MESSAGES)
    if kind == "tool_reference":
        name = part.get("name")
        if not isinstance(name, str | None):
            raise Unrenderable(Why.MESSAGES)
        return {"type": "tool_reference", "name": name} if content_format == "openai" else name
    if kind not in TEXT_FIELDS:
        raise Unrenderable(Why.MESSAGES)
    text = part.get(TEXT_FIELDS[kind])
    if text is None and (kind in SKIPPED_WITHOUT_TEXT or content_format == "string"):
        return None
    if not isinstance(text, str):
        raise Unrenderable(Why.MESSAGES)
    if content_format == "string":
        return text
    return {"type": "text", "text": text} | _unknown_fields(part)


def _add_assistant(out: Message, message: Mapping[str, Any], built: bool) -> None:
    calls = message.get("tool_calls")
    if calls:
        if not isinstance(calls, list):
            raise Unrenderable(Why.MESSAGES)
        out["tool_calls"] = [_tool_call(call, built) for call in calls]
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        out["reasoning"] = out["reasoning_content"] = reasoning


def _developers_tools(tools: Any) -> Any:
    """Tools in a message, unlike a body's, keep unknown keys and get no nulls; only the order is vLLM's."""
    if not isinstance(tools, list):
        return tools
    ordered = []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping):
            raise Unrenderable(Why.TOOLS)
        out = _ordered(tool, ("function", "type"))
        out["function"] = _ordered(function, ("name", "description", "parameters", "strict"))
        ordered.append(out)
    return ordered


def _tool_call(call: Any, built: bool) -> Message:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or call.get("type", "function") != "function":
        raise Unrenderable(Why.MESSAGES)
    dumped = dict(function) if built else _ordered(function, ("arguments", "name"))
    dumped["arguments"] = _arguments(function.get("arguments"))
    out = dict(call) if built else _ordered(call, ("id", "function", "type"))
    out["function"] = dumped
    return out


def _arguments(given: Any) -> Mapping[str, Any]:
    """Templates expect an object. Clients send it as JSON text. If that is invalid, vLLM uses an empty object."""
    if isinstance(given, str) and given:
        try:
            given = json.loads(given)
        except json.JSONDecodeError:
            return {}
    return given if isinstance(given, Mapping) else {}


def _ordered(values: Mapping[str, Any], first: tuple[str, ...]) -> Message:
    known = {name: values[name] for name in first if name in values}
    return known | {name: values[name] for name in values if name not in known}
