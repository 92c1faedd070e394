"""The client: holds conversations through the gateway, as streams, and measures each request and each run."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx

from gateway.commands.demo.scene import Conversation, Scene, conversations
from gateway.framework import Clock

QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one run. ``prompt_tokens``, ``cached_tokens``: from the engines' counters. ``ttfts``: in seconds,
    of the requests that had output. ``seconds``: the duration of the run."""

    name: str
    requests: int
    errors: int
    prompt_tokens: int
    cached_tokens: int
    ttfts: tuple[float, ...]
    seconds: float
    first_error: str = ""

    @property
    def cached_share(self) -> float:
        """0..1"""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def ttft(self) -> tuple[float, ...]:
        """Seconds at each of ``QUANTILES``."""
        return tuple(quantile(self.ttfts, q) for q in QUANTILES)

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "requests": self.requests,
            "errors": self.errors,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "cached_share": round(self.cached_share, 4),
            **{f"ttft_p{q * 100:g}": round(value, 4) for q, value in zip(QUANTILES, self.ttft, strict=True)},
            "seconds": round(self.seconds, 2),
        }


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least a fraction ``q`` of ``values`` does not exceed (nearest rank); NaN of none."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


PATIENCE = 60.0
"""Seconds for any single wait. A request takes about one second; one that takes sixty counts as an error."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The result of one request. ``ttft``: seconds from sending it to its first output; None if there was no output."""

    ttft: float | None
    error: str = ""


async def drive(scene: Scene, url: str, clock: Clock, progressed: Callable[[Sample], None]) -> list[Sample]:
    """Hold all conversations, ``scene.at_once`` at a time. Returns the samples in the order in which the requests
    ended."""
    waiting = conversations(scene)[::-1]
    samples: list[Sample] = []

    async def user(client: httpx.AsyncClient, number: int) -> None:
        # Users arrive one after the other, as in practice.
        await asyncio.sleep(number * scene.arrival_seconds)
        while waiting:
            conversation = waiting.pop()
            for question in conversation.questions:
                sample = await ask(client, conversation, question, scene, clock)
                samples.append(sample)
                progressed(sample)

    # Each user has one connection at a time, as in a browser. No proxy is used for loopback.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=scene.at_once)
    async with (
        httpx.AsyncClient(base_url=url, timeout=PATIENCE, limits=limits, trust_env=False) as client,
        asyncio.TaskGroup() as users,
    ):
        for number in range(scene.at_once):
            users.create_task(user(client, number), name=f"user {number}")
    return samples


async def ask(
    client: httpx.AsyncClient, conversation: Conversation, question: str, scene: Scene, clock: Clock
) -> Sample:
    """Send a question with the whole conversation before it, and add the answer to the conversation."""
    conversation.messages.append({"role": "user", "content": question})
    body = {"model": "sim", "messages": conversation.messages, "max_tokens": scene.answer_tokens}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    received, ttft, sent = b"", None, clock.monotonic()
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode(errors="replace")
                return Sample(None, f"{response.status_code}: {text[:300]}")
            # Only the first events are parsed as they come: parsing all would take CPU from engines and gateway.
            async for chunk in response.aiter_raw():
                received += chunk
                if ttft is None and words(received):
                    ttft = clock.monotonic() - sent
        answer = words(received)
    except httpx.HTTPError as error:
        return Sample(None, repr(error))
    conversation.messages.append({"role": "assistant", "content": answer})
    return Sample(ttft, "" if answer else "the answer was empty")


def words(stream: bytes) -> str:
    """The text in a stream of events, which may be incomplete. Raises RemoteProtocolError for an error event."""
    said = []
    for line in stream.split(b"\n")[:-1]:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line.removeprefix(b"data: "))
        if "error" in event:
            raise httpx.RemoteProtocolError(f"the stream ended with an error: {event['error']}")
        said += [choice["delta"].get("content") or "" for choice in event.get("choices", ())]
    return "".join(said)


async def counted(urls: Sequence[str], *names: str) -> list[float]:
    """Sum each of these counters over all engines' metrics."""
    async with httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as client:
        pages = [(await client.get(f"{url}/metrics")).raise_for_status().text for url in urls]
    return [sum(counter(page, name) for page in pages) for name in names]


def counter(page: str, name: str) -> float:
    """The sum of a counter's series in Prometheus' text format."""
    lines = [line for line in page.splitlines() if line.startswith((name + "{", name + " "))]
    if not lines:
        raise ValueError(f"the engine has no metric {name}")
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)
