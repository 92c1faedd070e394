"""``/v1/completions``: one choice for each prompt and each of its ``n`` sequences."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from simulator.call import Call
from simulator.chat import wanted_choices
from simulator.errors import ApiError
from simulator.generation import Generation, Piece
from simulator.prompts import COMPLETION_TOKENS, Ask, reports_hits, stops
from simulator.sink import encode_json


async def answer_completion(call: Call) -> web.StreamResponse:
    body = call.body
    transfer = call.transfer()
    name, adapter = call.model(body.get("model"))
    prompts = call.service.prompts
    prompts.check(body)
    if body.get("prompt") is None:
        raise ApiError(
            400, "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)", param="prompt"
        )
    each = await prompts.several(body["prompt"], body.get("add_special_tokens") is not False)
    asks = [
        Ask(
            ids=ids,
            max_tokens=prompts.limit(body, ids, COMPLETION_TOKENS, "max_tokens"),
            ignore_eos=body.get("ignore_eos") is True,
            stop=stops(body),
            salt=body.get("cache_salt"),
            adapter=adapter,
            seed=choice,
            transfer=transfer,
            report_hits=reports_hits(body),
        )
        for ids in each
        for choice in range(wanted_choices(body))
    ]
    answer_id = f"cmpl-{call.base_id}"
    generation = call.generate(asks, f"{answer_id}-0")
    if call.wants_stream:
        return await _stream(call, generation, answer_id, name)
    await generation.complete()
    ids_wanted = body.get("return_token_ids") is True
    echo = body.get("echo") is True
    choices = [
        {
            "index": index,
            "text": (call.service.words.decode(generation.asks[index].ids) if echo else "") + text,
            "logprobs": None,
            "finish_reason": generation.finishes[index],
            "stop_reason": generation.stops[index],
            "token_ids": generation.tokens[index] if ids_wanted else None,
            "prompt_logprobs": None,
            "prompt_token_ids": list(generation.asks[index].ids) if ids_wanted else None,
            "routed_experts": None,
        }
        for index, text in enumerate(generation.texts)
    ]
    return await call.sink.json(
        {
            "id": answer_id,
            "object": "text_completion",
            "created": call.created,
            "model": name,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": call.service.fingerprint,
            "usage": call.usage(generation.spent(), whole=True, chat=False),
            "kv_transfer_params": call.handover(generation),
            "ec_transfer_params": None,
            "metrics": None,
        }
    )


async def _stream(call: Call, generation: Generation, answer_id: str, name: str) -> web.StreamResponse:
    sink, usage = call.sink, call.wants_usage
    ids = call.body.get("return_token_ids") is True
    head = {"id": answer_id, "object": "text_completion", "created": call.created, "model": name}
    await sink.open()
    begun: set[int] = set()
    outputs = [0] * len(generation.jobs)
    async for piece in generation:
        prompt = list(generation.asks[piece.index].ids) if ids and piece.index not in begun else None
        begun.add(piece.index)
        outputs[piece.index] += 1
        so_far = call.running_usage(len(generation.asks[piece.index].ids), outputs[piece.index])
        chunk = {**head, "choices": [_choice(piece, prompt, ids)], **so_far}
        if piece.finish is not None and not usage:
            chunk["system_fingerprint"] = call.service.fingerprint
        await sink.event(encode_json(chunk))
    if usage:
        spent = call.usage(generation.spent(), whole=False, chat=False)
        last = {**head, "choices": [], "usage": spent, "system_fingerprint": call.service.fingerprint}
        await sink.event(encode_json(last))
    await sink.event(b"[DONE]")
    return await sink.end()


def _choice(piece: Piece, prompt: list[int] | None, ids: bool) -> dict[str, Any]:
    return {
        "index": piece.index,
        "text": piece.text,
        "logprobs": None,
        "finish_reason": piece.finish,
        "stop_reason": piece.stop,
        "prompt_token_ids": prompt,
        "token_ids": [piece.token] if ids else None,
    }
