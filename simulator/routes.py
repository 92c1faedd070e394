"""Which path is answered by what, and the small answers: health, version, models, metrics, KV sources, tokens."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from aiohttp import web

from simulator.call import Call
from simulator.chat import answer_chat
from simulator.completions import answer_completion
from simulator.errors import ApiError, invalid, missing
from simulator.messages import answer_message, count_tokens
from simulator.pooling import answer_embedding, answer_rerank, answer_score
from simulator.rendering import render_chat, render_message, render_response
from simulator.responses import answer_response
from simulator.server_info import answer_server_info
from simulator.speech import answer_transcription

Answer: TypeAlias = Callable[[Call], Awaitable[web.StreamResponse]]


async def _health(call: Call) -> web.StreamResponse:
    return await call.sink.empty()


async def _version(call: Call) -> web.StreamResponse:
    return await call.sink.json({"version": call.settings.version})


async def _load(call: Call) -> web.StreamResponse:
    # Always 0 without --enable-server-load-tracking.
    return await call.sink.json({"server_load": 0})


async def _models(call: Call) -> web.StreamResponse:
    settings = call.settings
    root = settings.tokenizer or f"/models/{settings.served_name}"
    cards: list[tuple[str, str, str | None]] = [
        (name, root, None) for name in (settings.served_name, *settings.aliases)
    ]
    cards += [(name, f"/adapters/{name}", settings.served_name) for name in settings.adapters]
    data = []
    for name, place, parent in cards:
        permission = {
            "id": f"modelperm-{uuid.uuid4().hex[:16]}",
            "object": "model_permission",
            "created": call.created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        card = {"id": name, "object": "model", "created": call.created, "owned_by": "vllm", "root": place}
        length = settings.max_model_len if parent is None else None
        data.append({**card, "parent": parent, "max_model_len": length, "permission": [permission]})
    return await call.sink.json({"object": "list", "data": data})


async def _sources(call: Call) -> web.StreamResponse:
    return await call.sink.json(call.service.sockets.sources())


async def _reset(call: Call) -> web.StreamResponse:
    return await call.sink.json({"success": call.service.clear()})


async def _sleep(call: Call) -> web.StreamResponse:
    query = call.request.query
    level, mode = query.get("level", "1"), query.get("mode", "abort")
    if level not in ("0", "1", "2") or mode not in ("abort", "wait", "keep"):
        raise ApiError(400, f"Invalid sleep: level {level}, mode {mode}")
    await call.service.sleep(int(level), mode)
    return await call.sink.empty()


async def _wake_up(call: Call) -> web.StreamResponse:
    call.service.wake()
    return await call.sink.empty()


async def _is_sleeping(call: Call) -> web.StreamResponse:
    return await call.sink.json({"is_sleeping": call.service.asleep})


async def _tokenize(call: Call) -> web.StreamResponse:
    body = call.body
    call.model(body.get("model"))
    prompts = call.service.prompts
    if "messages" in body:
        ids = await prompts.chat(body)
    elif isinstance(body.get("prompt"), str):
        ids = await prompts.text(body["prompt"], body.get("add_special_tokens") is not False)
    else:
        raise missing("prompt", body)
    words = call.service.words
    strings = [words.decode([token]) for token in ids] if body.get("return_token_strs") else None
    length = call.settings.max_model_len
    answer = {"count": len(ids), "max_model_len": length, "tokens": list(ids), "token_strs": strings}
    return await call.sink.json(answer)


async def _detokenize(call: Call) -> web.StreamResponse:
    body = call.body
    call.model(body.get("model"))
    tokens = body.get("tokens")
    if tokens is None:
        raise missing("tokens", body)
    if not isinstance(tokens, list) or not all(isinstance(token, int) and token >= 0 for token in tokens):
        raise invalid("list_type", "body.tokens", "Input should be a valid list of token ids", body)
    return await call.sink.json({"prompt": call.service.words.decode(tokens)})


ROUTES: Mapping[str, Mapping[str, Answer]] = {
    "/health": {"GET": _health},
    "/ping": {"GET": _health, "POST": _health},
    "/version": {"GET": _version},
    "/load": {"GET": _load},
    "/v1/models": {"GET": _models},
    "/kv_event_sources": {"GET": _sources},
    "/tokenize": {"POST": _tokenize},
    "/detokenize": {"POST": _detokenize},
    "/v1/chat/completions": {"POST": answer_chat},
    "/v1/completions": {"POST": answer_completion},
    "/v1/responses": {"POST": answer_response},
    "/v1/messages": {"POST": answer_message},
    "/v1/messages/count_tokens": {"POST": count_tokens},
    "/v1/embeddings": {"POST": answer_embedding},
    "/rerank": {"POST": answer_rerank},
    "/v1/rerank": {"POST": answer_rerank},
    "/v2/rerank": {"POST": answer_rerank},
    "/score": {"POST": answer_score},
    "/v1/score": {"POST": answer_score},
    "/v1/audio/transcriptions": {"POST": answer_transcription},
}

DEV_ROUTES: Mapping[str, Mapping[str, Answer]] = {
    "/reset_prefix_cache": {"POST": _reset},
    "/sleep": {"POST": _sleep},
    "/wake_up": {"POST": _wake_up},
    "/is_sleeping": {"GET": _is_sleeping},
    "/server_info": {"GET": answer_server_info},
}
"""Only in development mode, as in vLLM."""

SCALE_OUT_ROUTES: Mapping[str, Mapping[str, Answer]] = {
    "/v1/chat/completions/render": {"POST": render_chat},
    "/v1/messages/render": {"POST": render_message},
    "/v1/responses/render": {"POST": render_response},
}
"""Only with ``--enable-scale-out``."""
