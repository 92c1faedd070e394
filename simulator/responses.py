"""``/v1/responses``: OpenAI's Responses API as vLLM serves it for a plain chat model. Nothing is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from simulator.call import Call
from simulator.chat import chat_asks
from simulator.errors import invalid, missing
from simulator.generation import Generation
from simulator.job import Finish


async def answer_response(call: Call) -> web.StreamResponse:
    name, asks = await chat_asks(call, as_chat(call.body), "max_output_tokens")
    header = call.request.headers.get("X-Request-Id")
    answer_id = header or f"resp_{call.base_id}"
    item_id = f"msg_{call.base_id}"
    generation = call.generate(asks[:1], answer_id)
    if call.wants_stream:
        return await _stream(call, generation, answer_id, item_id, name)
    await generation.complete()
    return await call.sink.json(_final(call, generation, answer_id, item_id, name))


def as_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """A response's body as a chat's. Raises ApiError for input that is none."""
    # Unlike chats, and there is no field for it: a template that begins with a BOS has two then.
    special = {"add_special_tokens": True}
    return {**body, "messages": _messages(body), "tools": _tools(body.get("tools")), **special}


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """``instructions`` and ``input`` as chat messages."""
    given = body.get("input")
    if given is None:
        raise missing("input", body)
    messages: list[dict[str, Any]] = []
    if instructions := body.get("instructions"):
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise invalid("list_type", "body.input", "Input should be a valid string or list", body)
    for item in given:
        match item.get("type", "message"):
            case "message":
                messages.append({"role": item.get("role", "user"), "content": _content(item.get("content"))})
            case "function_call":
                function = {"name": item.get("name"), "arguments": item.get("arguments")}
                call = {"id": item.get("call_id"), "type": "function", "function": function}
                messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            case "function_call_output":
                output = {"tool_call_id": item.get("call_id"), "content": _text(item.get("output"))}
                messages.append({"role": "tool", **output})
            case _:
                pass
    return messages


def _content(content: Any) -> Any:
    images = [part for part in content if "image_url" in part] if isinstance(content, list) else []
    return [*images, {"type": "text", "text": _text(content)}] if images else _text(content)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(
            str(part.get("text") or "") for part in content if isinstance(part, dict) and "image_url" not in part
        )
    return str(content or "")


def _tools(tools: Any) -> list[dict[str, Any]] | None:
    """Responses' flat function tools as chat's nested ones."""
    if not isinstance(tools, list):
        return None
    nested = [
        {"type": "function", "function": {key: tool[key] for key in tool if key != "type"}}
        for tool in tools
        if isinstance(tool, dict) and tool.get("type") == "function"
    ]
    return nested or None


def _shell(call: Call, answer_id: str, name: str, limit: int) -> dict[str, Any]:
    """The response object before anything was generated."""
    body = call.body
    return {
        "id": answer_id,
        "created_at": call.created,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata"),
        "model": name,
        "object": "response",
        "output": [],
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "temperature": _decimal(body, "temperature", 1.0),
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools") or [],
        "top_p": _decimal(body, "top_p", 1.0),
        "background": False,
        "max_output_tokens": limit,
        "max_tool_calls": None,
        "previous_response_id": None,
        "prompt": None,
        "reasoning": None,
        "service_tier": "auto",
        "status": "in_progress",
        "text": None,
        "top_logprobs": None,
        "truncation": "disabled",
        "usage": None,
        "user": body.get("user"),
        "presence_penalty": _decimal(body, "presence_penalty", 0.0),
        "frequency_penalty": _decimal(body, "frequency_penalty", 0.0),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "input_messages": None,
        "output_messages": None,
    }


def _decimal(body: Mapping[str, Any], field: str, default: float) -> Any:
    """A number as vLLM tells it back: 0.0 for 0."""
    value = body.get(field, default)
    return float(value) if isinstance(value, int) else value


def _part(text: str) -> dict[str, Any]:
    # The part that is announced has an empty list where the finished one has null.
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": None if text else []}


def _item(item_id: str, text: str | None) -> dict[str, Any]:
    """The message item; ``text`` None: still without content."""
    content = [] if text is None else [_part(text)]
    status = "in_progress" if text is None else "completed"
    shown = {"id": item_id, "content": content, "role": "assistant", "status": status, "type": "message"}
    return {**shown, "phase": None}


def _final(call: Call, generation: Generation, answer_id: str, item_id: str, name: str) -> dict[str, Any]:
    spent = generation.spent()
    cut = generation.finishes[0] == Finish.LENGTH
    return {
        **_shell(call, answer_id, name, generation.asks[0].max_tokens),
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": [_item(item_id, generation.texts[0])],
        "status": "incomplete" if cut else "completed",
        "usage": {
            "input_tokens": spent.prompt,
            "input_tokens_details": {
                "cached_tokens": spent.cached,
                "cache_write_tokens": spent.created,
                "input_tokens_per_turn": [],
                "cached_tokens_per_turn": [],
            },
            "output_tokens": spent.output,
            "output_tokens_details": {
                "reasoning_tokens": 0,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": spent.prompt + spent.output,
        },
        "kv_transfer_params": call.handover(generation),
    }


async def _stream(call: Call, generation: Generation, answer_id: str, item_id: str, name: str) -> web.StreamResponse:
    events = _Events(call)
    await call.sink.open()
    shell = _shell(call, answer_id, name, generation.asks[0].max_tokens)
    await events.send("response.created", response=shell)
    await events.send("response.in_progress", response=shell)
    place = {"item_id": item_id, "output_index": 0, "content_index": 0}
    begun = False
    async for piece in generation:
        if not piece.text:
            continue
        if not begun:
            begun = True
            await events.send("response.output_item.added", output_index=0, item=_item(item_id, None))
            await events.send("response.content_part.added", **place, part=_part(""))
        await events.send("response.output_text.delta", **place, delta=piece.text, logprobs=[])
    text = generation.texts[0]
    if begun:
        await events.send("response.output_text.done", **place, text=text, logprobs=[])
        await events.send("response.content_part.done", **place, part=_part(text))
        await events.send("response.output_item.done", output_index=0, item=_item(item_id, text))
    await events.send("response.completed", response=_final(call, generation, answer_id, item_id, name))
    return await call.sink.end()


class _Events:
    """Numbers the events."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._number = 0

    async def send(self, kind: str, **fields: Any) -> None:
        event = {**fields, "sequence_number": self._number, "type": kind}
        await self._call.sink.named_event(kind, dict(sorted(event.items())))
        self._number += 1
