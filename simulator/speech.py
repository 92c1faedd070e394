"""``/v1/audio/transcriptions``: multipart in, a made-up transcript out. The audio is only weighed."""

from __future__ import annotations

from email.message import Message
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any

from aiohttp import web

from simulator.call import Call
from simulator.errors import ApiError, missing
from simulator.generation import Generation
from simulator.prompts import Ask
from simulator.sink import encode_json

BYTES_PER_SECOND = 32_000
"""16,000 samples of 16 bits: what a transcription model hears."""

BYTES_PER_PROMPT_TOKEN = 640
"""Whisper has 50 positions for a second."""

TRANSCRIPT_TOKENS = 24
"""Of an answer: long enough to be streamed."""


async def answer_transcription(call: Call) -> web.StreamResponse:
    fields = read_form(call.request.headers.get("Content-Type", ""), call.raw)
    audio = fields.get("file")
    if audio is None:
        raise missing("file", dict(fields))
    text = {name: value.decode(errors="replace") for name, value in fields.items() if name != "file"}
    name, adapter = call.model(text.get("model"))
    prompts = call.service.prompts
    ids = await prompts.text(text.get("prompt", ""), True)
    ids.extend(number % 256 for number in range(1 + len(audio) // BYTES_PER_PROMPT_TOKEN))
    limit = prompts.limit({}, ids, TRANSCRIPT_TOKENS)
    generation = call.generate([Ask(ids=ids, max_tokens=limit, ignore_eos=True, adapter=adapter)])
    if text.get("stream", "").lower() in ("true", "1"):
        return await _stream(call, generation, name, text.get("stream_include_usage", "").lower() == "true")
    await generation.complete()
    transcript = generation.texts[0].strip()
    if text.get("response_format") == "text":
        return await call.sink.raw(transcript.encode(), kind="text/plain; charset=utf-8")
    usage = {"type": "duration", "seconds": -(-len(audio) // BYTES_PER_SECOND)}
    return await call.sink.json({"text": transcript, "usage": usage})


def read_form(content_type: str, raw: bytes) -> dict[str, bytes]:
    """The parts of a multipart body by name; the last of several of one name. Raises ApiError if it is none."""
    if not content_type.lower().startswith("multipart/form-data"):
        raise ApiError(400, "The body must be multipart/form-data.", "Bad Request")
    message: Message = BytesParser(policy=HTTP).parsebytes(
        b"Content-Type: " + content_type.encode(errors="replace") + b"\r\n\r\n" + raw
    )
    if not message.is_multipart():
        raise ApiError(400, "There was an error parsing the body", "Bad Request")
    fields: dict[str, bytes] = {}
    for part in message.get_payload():
        if isinstance(part, Message):
            name = part.get_param("name", header="content-disposition")
            payload = part.get_payload(decode=True)
            if isinstance(name, str) and isinstance(payload, bytes):
                fields[name] = payload
    return fields


async def _stream(call: Call, generation: Generation, name: str, usage: bool) -> web.StreamResponse:
    answer_id = f"trsc-{call.base_id}"
    head: dict[str, Any] = {"id": answer_id, "object": "transcription.chunk", "created": call.created, "model": name}
    await call.sink.open()
    async for piece in generation:
        choice = {"delta": {"content": piece.text}, "finish_reason": piece.finish, "stop_reason": None}
        await call.sink.event(encode_json({**head, "choices": [choice]}))
    if usage:
        spent = call.usage(generation.spent(), whole=False, chat=True)
        await call.sink.event(encode_json({**head, "choices": [], "usage": spent}))
    await call.sink.event(b"[DONE]")
    return await call.sink.end()
