"""One prompt asked for on each route that generates, and what an answer of it says, streamed and not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from tests.engines.answers import events
from tests.engines.chats import Body, user

TOKENS = 12  # of an answer
ASK: Body = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""The parameters of a prefill leg."""


@dataclass(frozen=True, slots=True)
class Route:
    """``limits``: the body's fields that bound an answer. ``whole``, ``part``: the text of an answer, of an event."""

    path: str
    limits: tuple[str, ...]
    prompt: Callable[[str], Body]
    whole: Callable[[Any], str]
    part: Callable[[Any], str]

    def body(self, prompt: str, **more: Any) -> Body:
        """A greedy request of ``TOKENS`` tokens."""
        return {**self.prompt(prompt), "temperature": 0, self.limits[0]: TOKENS, **more}

    def prefill(self, prompt: str, **more: Any) -> Body:
        """Its prefill leg."""
        return self.body(prompt, **dict.fromkeys(self.limits, 1), kv_transfer_params=ASK, **more)

    def text(self, answer: httpx.Response) -> str:
        """What a 200 says; fails on an error in a stream."""
        assert answer.status_code == 200, answer.text
        if not answer.headers["content-type"].startswith("text/event-stream"):
            return self.whole(answer.json())
        found = [data for _, data in events(answer.text) if data != "[DONE]"]
        assert not [data for data in found if "error" in data], answer.text
        return "".join(self.part(data) for data in found)

    def length(self, answer: httpx.Response) -> int:
        """Of the prompt, in tokens, by the usage of an unstreamed answer."""
        usage = answer.json()["usage"]
        if "prompt_tokens" in usage:
            return int(usage["prompt_tokens"])
        # Anthropic's input_tokens leave out what was found in the cache and what was put into it.
        parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        return sum(usage.get(name, 0) for name in parts)


def _chat_part(event: Any) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])


def _messages_part(event: Any) -> str:
    return str(event["delta"].get("text", "")) if event["type"] == "content_block_delta" else ""


def _responses_part(event: Any) -> str:
    return str(event["delta"]) if event["type"] == "response.output_text.delta" else ""


ROUTES: dict[str, Route] = {
    "chat": Route(
        "/v1/chat/completions",
        ("max_tokens", "max_completion_tokens"),
        lambda prompt: {"messages": [user(prompt)]},
        lambda answer: str(answer["choices"][0]["message"]["content"]),
        _chat_part,
    ),
    "completions": Route(
        "/v1/completions",
        ("max_tokens",),
        lambda prompt: {"prompt": prompt},
        lambda answer: str(answer["choices"][0]["text"]),
        lambda event: "".join(choice["text"] for choice in event["choices"]),
    ),
    "responses": Route(
        "/v1/responses",
        ("max_output_tokens",),
        lambda prompt: {"input": prompt},
        lambda answer: str(answer["output"][0]["content"][0]["text"]),
        _responses_part,
    ),
    "messages": Route(
        "/v1/messages",
        ("max_tokens",),
        lambda prompt: {"messages": [user(prompt)]},
        lambda answer: str(answer["content"][0]["text"]),
        _messages_part,
    ),
}
