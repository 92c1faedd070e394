"""``/v1/messages``: Anthropic's API as vLLM serves it, made of a chat and turned back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from simulator.call import Call
from simulator.chat import chat_asks
from simulator.errors import invalid, missing
from simulator.generation import Generation, Spent
from simulator.job import Finish

REASONS = {Finish.STOP: "end_turn", Finish.LENGTH: "max_tokens"}


async def answer_message(call: Call) -> web.StreamResponse:
    body = call.body
    if body.get("max_tokens") is None:
        raise missing("max_tokens", body)
    chat = {**as_chat(body), "stop": body.get("stop_sequences")}
    name, asks = await chat_asks(call, chat, "max_tokens")
    answer_id = f"chatcmpl-{call.base_id}"
    generation = call.generate(asks[:1], answer_id)
    if call.wants_stream:
        return await _stream(call, generation, answer_id, name)
    await generation.complete()
    answer: dict[str, Any] = {
        "id": answer_id,
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": generation.texts[0]}] if generation.texts[0] else [],
        "model": name,
        "stop_reason": _reason(generation),
        "usage": _usage(call, generation.spent()),
    }
    if generation.stops[0] is not None:
        answer["stop_sequence"] = generation.stops[0]
    if result := call.handover(generation):
        answer["kv_transfer_params"] = result
    return await call.sink.json(answer)


async def count_tokens(call: Call) -> web.StreamResponse:
    """``/v1/messages/count_tokens``."""
    call.model(call.body.get("model"))
    return await call.sink.json({"input_tokens": len(await call.service.prompts.chat(as_chat(call.body)))})


def as_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """An Anthropic body as a chat's. Raises ApiError for messages that are none."""
    given = body.get("messages")
    if given is None:
        raise missing("messages", body)
    if not isinstance(given, list) or not all(isinstance(message, dict) for message in given):
        raise invalid("list_type", "body.messages", "Input should be a valid list", body)
    messages: list[dict[str, Any]] = []
    if system := body.get("system"):
        messages.append({"role": "system", "content": _text(system, "")})
    for message in given:
        messages.extend(_turn(message))
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.get("name"),
                "description": tool.get("description"),
                "parameters": {"type": "object", **(tool.get("input_schema") or {})},
            },
        }
        for tool in body.get("tools") or ()
        if isinstance(tool, dict)
    ]
    return {**body, "messages": messages, "tools": tools or None}


def _turn(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One message's blocks: its text, its tool calls, and a message for each tool's result."""
    role, content = str(message.get("role", "user")), message.get("content")
    if not isinstance(content, list):
        return [{"role": role, "content": str(content or "")}]
    calls, results = [], []
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            function = {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {})}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            text = _text(block.get("content"), "\n")
            results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text})
    text = _text(content, "\n")
    images = [_image(block["source"]) for block in content if block.get("type") == "image"]
    turn: dict[str, Any] = {"role": role, "content": [*images, {"type": "text", "text": text}] if images else text}
    if calls:
        turn["tool_calls"] = calls
    return [*results, turn] if text or calls or images or not results else results


def _image(source: Mapping[str, Any]) -> dict[str, Any]:
    url = source.get("url") or f"data:{source.get('media_type')};base64,{source.get('data')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _text(content: Any, separator: str) -> str:
    if isinstance(content, list):
        texts = [block.get("text") for block in content if isinstance(block, dict) and block.get("type") == "text"]
        return separator.join(text for text in texts if isinstance(text, str))
    return str(content or "")


def _reason(generation: Generation) -> str:
    if generation.stops[0] is not None:
        return "stop_sequence"
    return REASONS.get(Finish(generation.finishes[0] or Finish.STOP), "end_turn")


def _usage(call: Call, spent: Spent) -> dict[str, int]:
    usage = {"input_tokens": spent.prompt, "output_tokens": spent.output}
    if call.settings.report_cached_tokens:
        # Anthropic's input_tokens are those that neither came from the cache nor were put into it.
        usage["input_tokens"] -= spent.created + spent.cached
        usage["cache_creation_input_tokens"] = spent.created
        usage["cache_read_input_tokens"] = spent.cached
    return usage


async def _stream(call: Call, generation: Generation, answer_id: str, name: str) -> web.StreamResponse:
    sink = call.sink
    await sink.open()
    await generation.begin()
    message: dict[str, Any] = {
        "id": answer_id,
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": name,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": generation.spent().prompt, "output_tokens": 0},
    }
    await sink.named_event("message_start", {"type": "message_start", "message": message})
    begun = False
    async for piece in generation:
        if not piece.text:
            continue
        if not begun:
            begun = True
            block = {"type": "text", "text": ""}
            start = {"type": "content_block_start", "content_block": block, "index": 0}
            await sink.named_event("content_block_start", start)
        delta = {"type": "text_delta", "text": piece.text}
        await sink.named_event("content_block_delta", {"type": "content_block_delta", "delta": delta, "index": 0})
    if begun:
        await sink.named_event("content_block_stop", {"type": "content_block_stop", "index": 0})
    end = {"stop_reason": _reason(generation), "stop_sequence": generation.stops[0]}
    usage = _usage(call, generation.spent())
    await sink.named_event("message_delta", {"type": "message_delta", "delta": end, "usage": usage})
    await sink.named_event("message_stop", {"type": "message_stop"})
    return await sink.end()
