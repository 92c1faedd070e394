"""Converts a body of the Responses API to a chat as vLLM 0.32 does, and finds the id of a response in an answer.

Source: ``construct_input_messages`` and ``construct_tool_dicts`` in ``vllm/entrypoints/openai/responses/utils.py``, the
validators of ``ResponsesRequest``, and the models of the ``openai`` package that it uses. Rules: pure; items are read
with the types of those models, and the engine refuses other types and items that vLLM does not render. Unlike chats,
responses are tokenized with the tokenizer's own special tokens (a second BOS if the template writes one).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from gateway.core.prompt import ChatInput, NotConvertible

Object = dict[str, Any]
T = TypeVar("T")

CUSTOM_INPUT = "input"
"""The only argument of the function to which vLLM converts a custom tool."""
INPUT_PARTS = ("input_text", "input_image", "input_file")
UNFINISHED = ("in_progress", "incomplete")
"""If the last message has one of these states, the model continues it."""


class _Reasoning(msgspec.Struct, frozen=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None


class _Body(msgspec.Struct, frozen=True):
    input: str | list[Object]
    instructions: str | None = None
    tools: list[Object] = []
    reasoning: _Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = "disabled"
    chat_template_kwargs: Object | None = None


class _FunctionCall(msgspec.Struct, frozen=True):
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class _CustomCall(msgspec.Struct, frozen=True):
    call_id: str
    name: str
    input: str


class _FunctionOutput(msgspec.Struct, frozen=True):
    output: str | list[Object]
    call_id: str | None = None


class _CustomOutput(msgspec.Struct, frozen=True):
    call_id: str
    output: str | list[Object]


class _Summary(msgspec.Struct, frozen=True):
    type: Literal["summary_text"]
    text: str


class _Thought(msgspec.Struct, frozen=True):
    type: Literal["reasoning_text"]
    text: str


class _ReasoningItem(msgspec.Struct, frozen=True):
    summary: list[_Summary]
    content: list[_Thought] | None = None
    encrypted_content: str | None = None


class _OutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    text: str


class _Refusal(msgspec.Struct, frozen=True, tag_field="type", tag="refusal"):
    refusal: str


class _AssistantItem(msgspec.Struct, frozen=True):
    content: list[_OutputText | _Refusal]


class _MessageItem(msgspec.Struct, frozen=True):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Object]


class _Function(msgspec.Struct, frozen=True):
    name: str
    description: str | None = None
    parameters: Object | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class _CustomTool(msgspec.Struct, frozen=True):
    name: str
    description: str | None = None
    format: Object | None = None


class _Namespace(msgspec.Struct, frozen=True):
    name: str
    description: str
    tools: list[Object]


class _Named(msgspec.Struct):
    id: str


class _Created(msgspec.Struct):
    response: _Named


FIELDS = _Body.__struct_fields__
"""The fields of the body that change the prompt."""

_NAMED = msgspec.json.Decoder(_Named)
_CREATED = msgspec.json.Decoder(_Created)
_FIRST_DATA = re.compile(rb"^data: ?(.*)$", re.MULTILINE)


def read_response(given: Object, raw: bytes) -> ChatInput:
    """The chat in ``given``, the parsed values of ``FIELDS`` that the body has. ``raw``: as ``ChatInput.raw``.

    Raises:
        NotConvertible: vLLM would refuse it.
    """
    body = _read(given, _Body)
    messages: list[Object] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        messages.append({"role": "user", "content": body.input})
    else:
        # Only items of the input are merged with each other, never with the instructions.
        messages += _converse(body.input)
    continues = _continues(body.input)
    return ChatInput(
        messages=messages,
        raw=raw,
        tools=list(_tools(body.tools)) if body.tools else None,
        template_kwargs=body.chat_template_kwargs or {},
        reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
        add_generation_prompt=not continues,
        continue_final_message=continues,
        add_special_tokens=True,
        truncated=body.truncation != "disabled",
        built=True,
    )


def read_id(answer: bytes, *, stream: bool) -> str | None:
    """The id under which the engine may keep the response; None if the answer has none. ``answer``: the whole body, or
    the beginning of a stream, up to its first event at least."""
    try:
        if not stream:
            return _NAMED.decode(answer).id
        found = _FIRST_DATA.search(answer)
        return None if found is None else _CREATED.decode(found.group(1)).response.id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _continues(given: str | Sequence[Object]) -> bool:
    if isinstance(given, str) or not given:
        return False
    last = given[-1]
    return last.get("type", "message") in ("message", "reasoning") and last.get("status") in UNFINISHED


def _converse(items: Sequence[Object]) -> list[Object]:
    """Several items can form one message: an assistant's reasoning, text and tool calls."""
    messages: list[Object] = []
    for item in items:
        before = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
        message = _message(item, before)
        if message is not None:
            messages.append(message)
    return messages


def _message(item: Object, before: Object | None) -> Object | None:
    """The message of ``item``; None if ``item`` was merged into ``before``, the assistant's message before it."""
    kind = item.get("type", "message")
    read = _ITEMS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise NotConvertible
    message = read(item)
    if message["role"] != "assistant" or before is None:
        return message
    for name in ("tool_calls", "reasoning", "content"):
        if message.get(name) is None:
            continue
        if before.get(name) is None:
            before[name] = message[name]
        elif name == "tool_calls":
            before[name] += message[name]
        else:
            return message
        return None
    return message


def _function_call(item: Object) -> Object:
    call = _read(item, _FunctionCall)
    name = f"{call.namespace}__{call.name}" if call.namespace else call.name
    return _calls(call.call_id, name, call.arguments)


def _custom_call(item: Object) -> Object:
    call = _read(item, _CustomCall)
    return _calls(call.call_id, call.name, json.dumps({CUSTOM_INPUT: call.input}, ensure_ascii=False))


def _calls(call_id: str, name: str, arguments: str) -> Object:
    call = {"id": call_id, "function": {"name": name, "arguments": arguments}, "type": "function"}
    return {"role": "assistant", "tool_calls": [call]}


def _function_output(item: Object) -> Object:
    output = _read(item, _FunctionOutput)
    return {"role": "tool", "content": output.output, "tool_call_id": output.call_id}


def _custom_output(item: Object) -> Object:
    output = _read(item, _CustomOutput)
    return {"role": "tool", "content": output.output, "tool_call_id": output.call_id}


def _reasoning(item: Object) -> Object:
    thought = _read(item, _ReasoningItem)
    if thought.encrypted_content:
        raise NotConvertible
    texts = thought.content or thought.summary
    return {"role": "assistant", "reasoning": texts[0].text if texts else ""}


def _spoken(item: Object) -> Object:
    message = _read(item, _MessageItem)
    if message.role != "assistant":
        return item
    content = message.content
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    if item.get("type") != "message" and not content:
        return item
    if content and all(part.get("type") in INPUT_PARTS for part in content):
        text = content[0].get("text")
        return item if text is None else {"role": "assistant", "content": text}
    # vLLM keeps only the first part of an assistant's content, and fails if that is a refusal.
    match _read(item, _AssistantItem).content:
        case [_OutputText(text), *_] if "type" in item:
            return {"role": "assistant", "content": text}
    raise NotConvertible


_ITEMS: Mapping[str, Callable[[Object], Object]] = {
    "message": _spoken,
    "function_call": _function_call,
    "function_call_output": _function_output,
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _custom_output,
    "reasoning": _reasoning,
}


def _tools(tools: Sequence[Object]) -> Iterator[Object]:
    """Functions as a chat's body has them. Tools that an engine or a service runs itself are not shown to the model."""
    for tool in tools:
        match tool.get("type"):
            case "function":
                yield _function(_read(tool, _Function))
            case "custom":
                yield _custom(_read(tool, _CustomTool))
            case "namespace":
                space = _read(tool, _Namespace)
                for inner in space.tools:
                    if inner.get("type") == "function":
                        function = _read(inner, _Function)
                        yield _function(msgspec.structs.replace(function, name=f"{space.name}__{function.name}"))


def _function(tool: _Function) -> Object:
    return {"type": "function", "function": {name: getattr(tool, name) for name in _Function.__struct_fields__}}


def _custom(tool: _CustomTool) -> Object:
    if tool.format is not None and tool.format.get("type") == "grammar":
        raise NotConvertible
    payload = {"type": "string", "description": "The freeform text payload for this tool."}
    schema = {
        "type": "object",
        "properties": {CUSTOM_INPUT: payload},
        "required": [CUSTOM_INPUT],
        "additionalProperties": False,
    }
    return _function(_Function(tool.name, tool.description, schema))


def _read(value: object, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind)
    except (msgspec.MsgspecError, RecursionError):
        raise NotConvertible from None
