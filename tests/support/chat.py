"""One chat, as its client and its engine say it."""

from __future__ import annotations

import orjson

CHAT = {"model": "sim", "messages": [{"role": "user", "content": "Hello there"}]}
STREAMED = {**CHAT, "stream": True}

COMPLETE = orjson.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "sim",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5},
    }
)


def event(delta: dict[str, object]) -> bytes:
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


ROLE = event({"role": "assistant", "content": ""})
WORD = event({"content": "Hi"})
DONE = b"data: [DONE]\n\n"
