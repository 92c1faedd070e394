"""Converts a body of Anthropic's Messages API to a chat as vLLM 0.32 does.

Source: ``AnthropicServingMessages.to_chat_completion_request`` and the models in ``vllm/entrypoints/anthropic``. Rules:
pure; fields are read with the types of those models, and the engine refuses other types. Two choices depend on the chat
template. They are made when the chat is rendered: ``ChatInput.system_first`` and ``.thinking_disabled``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from gateway.core.prompt import BILLING_HEADER, ChatInput, NotConvertible

Object = dict[str, Any]


class _Tool(msgspec.Struct, frozen=True):
    name: str
    input_schema: Object
    description: str | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class _ToolReference(msgspec.Struct, frozen=True, tag_field="type", tag="tool_reference"):
    name: str


class _ToolDefinition(msgspec.Struct, frozen=True, tag_field="type", tag="tool_definition"):
    definition: _Tool


class _Block(msgspec.Struct, frozen=True):
    type: Literal[
        "text",
        "image",
        "tool_use",
        "tool_result",
        "tool_reference",
        "thinking",
        "redacted_thinking",
        "tool_addition",
        "tool_removal",
    ]
    text: str | None = None
    source: Object | None = None
    id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    input: Object | None = None
    content: str | list[Object] | None = None
    thinking: str | None = None
    tool: _ToolReference | _ToolDefinition | None = None


class _Message(msgspec.Struct, frozen=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]


class _Thinking(msgspec.Struct, frozen=True):
    type: Literal["enabled", "disabled", "adaptive"]


class _OutputConfig(msgspec.Struct, frozen=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class _Body(msgspec.Struct, frozen=True):
    messages: list[_Message]
    system: str | list[_Block] | None = None
    tools: list[_Tool] | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    chat_template_kwargs: Object | None = None


FIELDS = _Body.__struct_fields__
"""The fields of the body that change the prompt."""


def read_messages(given: Object, raw: bytes) -> ChatInput:
    """The chat in ``given``, the parsed values of ``FIELDS`` that the body has. ``raw``: as ``ChatInput.raw``.

    Raises:
        NotConvertible: vLLM would refuse it.
    """
    try:
        body = msgspec.convert(given, _Body)
    except (msgspec.MsgspecError, RecursionError):
        raise NotConvertible from None
    messages: list[Object] = []
    if system := _system(body.system):
        messages.append({"role": "system", "content": system})
    for message in body.messages:
        _convert(message, messages)
    tools = _resolve(body)
    effort = body.output_config.effort if body.output_config is not None else None
    return ChatInput(
        messages=messages,
        raw=raw,
        tools=None if tools is None else [_tool(tool) for tool in tools],
        template_kwargs=body.chat_template_kwargs or {},
        reasoning_effort=effort,
        system_first=True,
        thinking_disabled=body.thinking is not None and body.thinking.type == "disabled",
    )


def _system(system: str | Sequence[_Block] | None) -> str:
    """The text of the body's ``system``. A plain string keeps its billing header here; it is removed later, as in any
    system message."""
    if isinstance(system, str):
        return system
    if system and any(block.type in ("tool_addition", "tool_removal") for block in system):
        raise NotConvertible
    return _texts(system or ())


def _texts(blocks: Iterable[_Block]) -> str:
    return "".join(
        block.text
        for block in blocks
        if block.type == "text" and block.text and not block.text.startswith(BILLING_HEADER)
    )


def _convert(message: _Message, messages: list[Object]) -> None:
    """Convert ``message`` and append the result; its tool results come first, as messages of their own."""
    content = message.content
    if message.role == "system":
        # A string is handled as one text block, unlike the body's own ``system``.
        blocks = [_Block(type="text", text=content)] if isinstance(content, str) else content
        if text := _texts(blocks):
            messages.append({"role": "system", "content": text})
        return
    out: Object = {"role": message.role}
    if isinstance(content, str):
        out["content"] = content
    else:
        out |= _blocks(content, message.role, messages)
    if message.role != "user" or "content" in out:
        messages.append(out)


def _blocks(blocks: Sequence[_Block], role: str, messages: list[Object]) -> Object:
    parts: list[Object] = []
    calls: list[Object] = []
    reasoning: list[str] = []
    for block in blocks:
        match block.type:
            case "text" if block.text:
                parts.append({"type": "text", "text": block.text})
            case "image" if block.source:
                parts.append(_image(block.source))
            case "thinking" if block.thinking is not None:
                reasoning.append(block.thinking)
            case "tool_use":
                calls.append(_call(block))
            case "tool_result" if role == "user":
                _result(block, messages)
            case "tool_result":
                parts.append({"type": "text", "text": f"Tool result: {block.content or ''}"})
            case "tool_addition" | "tool_removal":
                raise NotConvertible  # only a system message may hold it
    out: Object = {}
    if reasoning:
        out["reasoning"] = "".join(reasoning)
    if calls:
        out["tool_calls"] = calls
    if len(parts) == 1 and parts[0]["type"] == "text":
        out["content"] = parts[0]["text"]
    elif parts:
        out["content"] = parts
    return out


def _image(source: Object) -> Object:
    # vLLM writes a data URL here. It is used only to distinguish images, for which the source is enough.
    return {"type": "image_url", "image_url": source}


def _call(block: _Block) -> Object:
    if not block.id:
        raise NotConvertible  # vLLM accepts it, and puts the time of day there
    return {
        "id": block.id,
        "type": "function",
        "function": {"name": block.name or "", "arguments": block.input or {}},
    }


def _result(block: _Block, messages: list[Object]) -> None:
    """A user's ``tool_result``: its text as a tool message, followed by its images and its references to tools."""
    texts: list[str] = []
    images: list[Object] = []
    references: list[Object] = []
    for item in block.content if isinstance(block.content, list) else ():
        match item.get("type"):
            case "text":
                text = item.get("text", "")
                if not isinstance(text, str):
                    raise NotConvertible
                texts.append(text)
            case "image":
                source = item.get("source", {})
                if not isinstance(source, dict):
                    raise NotConvertible
                if source.get("type") != "url" or source.get("url"):
                    images.append(_image(source))
            case "tool_reference":
                if name := item.get("tool_name") or item.get("name"):
                    references.append({"type": "tool_reference", "name": name})
    call = block.tool_use_id or ""
    content = block.content if isinstance(block.content, str) else "\n".join(texts)
    messages.append({"role": "tool", "tool_call_id": call, "content": content})
    if images:
        messages.append({"role": "user", "content": images})
    if references:
        messages.append({"role": "tool", "tool_call_id": call, "content": references})


def _resolve(body: _Body) -> Sequence[_Tool] | None:
    """The tools in effect at the end, after what system messages add and remove."""
    changes = [
        block
        for message in body.messages
        if not isinstance(message.content, str)
        for block in message.content
        if block.type in ("tool_addition", "tool_removal")
    ]
    if not changes:
        return body.tools
    tools = {tool.name: tool for tool in body.tools or ()}
    removed: set[str] = set()
    for block in changes:
        match block.tool:
            case _ToolDefinition(definition) if block.type == "tool_addition":
                name = definition.name
                tools[name] = definition
            case _ToolReference(name) if name in tools:
                if block.type == "tool_addition":
                    tools[name] = msgspec.structs.replace(tools[name], defer_loading=None)
            case _:
                raise NotConvertible
        if block.type == "tool_removal":
            removed.add(name)
        else:
            removed.discard(name)
    return [tool for name, tool in tools.items() if name not in removed]


def _tool(tool: _Tool) -> Object:
    schema = tool.input_schema
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": schema if "type" in schema else {**schema, "type": "object"},
            "strict": tool.strict,
            "defer_loading": tool.defer_loading,
        },
    }
