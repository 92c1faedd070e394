"""Chats, as their clients and their engines say them."""

from __future__ import annotations

import random
from typing import Any

import orjson

CHAT = {"model": "sim", "messages": [{"role": "user", "content": "Hello there"}]}
STREAMED = {**CHAT, "stream": True}
TELLING = {**STREAMED, "stream_options": {"include_usage": True}}
"""Its client asks for the usage, so that what the engine says passes as it comes."""

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


WORDS = ("engine", "block", "token", "prefix", "cache", "queue")


def chat(group: int = 0, question: int = 0, words: int = 300, **extra: Any) -> dict[str, Any]:
    """A question to be answered with 3 tokens; all of a group have the same system prompt, of so many words."""
    chance = random.Random(group)
    system = " ".join(chance.choice(WORDS) for _ in range(words))
    messages = [
        {"role": "system", "content": f"{group}: {system}"},
        {"role": "user", "content": f"Question {question}"},
    ]
    return {"model": "sim", "messages": messages, "max_tokens": 3, **extra}
