"""The routes that render: a body to the token ids that the engine would compute, and the images among them.

Only with ``--enable-scale-out``, as in vLLM 0.32; keys as its answers have them, with ``mm_payload: "none"``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from simulator import messages, responses
from simulator.call import Call
from simulator.errors import ApiError


async def render_chat(call: Call) -> web.StreamResponse:
    return await _render(call, call.body, f"chatcmpl-{call.base_id}")


async def render_message(call: Call) -> web.StreamResponse:
    return await _render(call, messages.as_chat(call.body), f"chatcmpl-{call.base_id}")


async def render_response(call: Call) -> web.StreamResponse:
    if call.body.get("previous_response_id") is not None:
        message = "previous_response_id is not supported by the stateless render endpoint."
        raise ApiError(400, message, "invalid_request_error", param="previous_response_id")
    return await _render(call, responses.as_chat(call.body), f"resp_{call.base_id}")


async def _render(call: Call, chat: Mapping[str, Any], answer_id: str) -> web.StreamResponse:
    name, _ = call.model(chat.get("model"))
    ids, media = await call.service.prompts.chat_with_media(chat)
    await asyncio.sleep(call.settings.render_seconds)
    features = None
    if media:
        features = {
            "mm_hashes": {"image": [one.identifier for one in media]},
            "mm_placeholders": {"image": [{"offset": one.offset, "length": one.length} for one in media]},
            "kwargs_data": None,
            "mm_metadata": None,
        }
    return await call.sink.json(
        {
            "request_id": answer_id,
            "token_ids": list(ids),
            "token_offsets": None,
            "features": features,
            "sampling_params": {"max_tokens": chat.get("max_tokens")},
            "model": name,
            "stream": call.wants_stream,
            "cache_salt": chat.get("cache_salt"),
            "priority": chat.get("priority") or 0,
        }
    )
