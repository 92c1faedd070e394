"""``/v1/chat/completions``: the answer's shape, whole and as events (captures of 0.32, key by key)."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from simulator.call import Call
from simulator.generation import Generation, Piece
from simulator.prompts import Ask, reports_hits, stops
from simulator.sink import encode_json


async def chat_asks(call: Call, body: dict[str, Any], *limits: str) -> tuple[str, list[Ask]]:
    """The model's name and the sequences that a chat-like body asks for. Raises ApiError, EngineDead."""
    transfer = call.transfer()
    name, adapter = call.model(body.get("model"))
    prompts = call.service.prompts
    prompts.check(body)
    ids, media = await prompts.chat_with_media(body)
    limit = prompts.limit(body, ids, None, *limits)
    return name, [
        Ask(
            ids=ids,
            max_tokens=limit,
            ignore_eos=body.get("ignore_eos") is True,
            stop=stops(body),
            salt=body.get("cache_salt"),
            adapter=adapter,
            seed=choice,
            transfer=transfer,
            report_hits=reports_hits(body),
            media=media,
        )
        for choice in range(wanted_choices(body))
    ]


def wanted_choices(body: dict[str, Any]) -> int:
    """``n``, at least 1."""
    wanted = body.get("n")
    return wanted if isinstance(wanted, int) and wanted > 1 else 1


async def answer_chat(call: Call) -> web.StreamResponse:
    name, asks = await chat_asks(call, call.body, "max_completion_tokens", "max_tokens")
    answer_id = f"chatcmpl-{call.base_id}"
    generation = call.generate(asks, answer_id)
    if call.wants_stream:
        return await _stream(call, generation, answer_id, name)
    await generation.complete()
    return await call.sink.json(chat_body(call, generation, answer_id, name))


def chat_body(call: Call, generation: Generation, answer_id: str, name: str) -> dict[str, Any]:
    """The unstreamed answer."""
    ids = call.body.get("return_token_ids") is True
    choices = [
        {
            "index": index,
            "message": {
                "role": "assistant",
                "content": text,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            },
            "logprobs": None,
            "finish_reason": generation.finishes[index],
            "stop_reason": generation.stops[index],
            "token_ids": generation.tokens[index] if ids else None,
            "routed_experts": None,
        }
        for index, text in enumerate(generation.texts)
    ]
    return {
        "id": answer_id,
        "object": "chat.completion",
        "created": call.created,
        "model": name,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": call.service.fingerprint,
        "usage": call.usage(generation.spent(), whole=True, chat=True),
        "prompt_logprobs": None,
        "prompt_token_ids": list(generation.asks[0].ids) if ids else None,
        "prompt_text": None,
        "kv_transfer_params": call.handover(generation),
        "ec_transfer_params": None,
        "metrics": None,
    }


async def _stream(call: Call, generation: Generation, answer_id: str, name: str) -> web.StreamResponse:
    sink, usage = call.sink, call.wants_usage
    ids = call.body.get("return_token_ids") is True
    head = {"id": answer_id, "object": "chat.completion.chunk", "created": call.created, "model": name}
    await sink.open()
    # The roles go out with the first token, or with the error in its place, not before: the head alone came at once.
    await generation.begin()
    prompt = list(generation.asks[0].ids) if ids else None
    for index in range(len(generation.jobs)):
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        tail = {"prompt_token_ids": prompt, "prompt_text": None}
        so_far = _so_far(call, generation, index)
        await sink.event(encode_json({**head, "choices": [choice], **so_far, **tail}))
    outputs = [0] * len(generation.jobs)
    async for piece in generation:
        outputs[piece.index] += 1
        so_far = _so_far(call, generation, piece.index, outputs[piece.index])
        chunk = {**head, "choices": [_choice(piece, ids)], **so_far}
        if piece.finish is not None and not usage:
            chunk["system_fingerprint"] = call.service.fingerprint
        await sink.event(encode_json(chunk))
    if usage:
        spent = call.usage(generation.spent(), whole=False, chat=True)
        last = {**head, "choices": [], "usage": spent, "system_fingerprint": call.service.fingerprint}
        await sink.event(encode_json(last))
    await sink.event(b"[DONE]")
    return await sink.end()


def _so_far(call: Call, generation: Generation, index: int, output: int = 0) -> dict[str, Any]:
    usage = call.running_usage(len(generation.asks[index].ids), output)
    if usage:
        usage["usage"]["completion_tokens_details"] = None
    return usage


def _choice(piece: Piece, ids: bool) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": piece.index,
        "delta": {"content": piece.text},
        "logprobs": None,
        "finish_reason": piece.finish,
    }
    if piece.finish is not None:
        choice["stop_reason"] = piece.stop
    choice["token_ids"] = [piece.token] if ids else None
    return choice
