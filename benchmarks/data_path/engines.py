"""Mock engines: what vLLM's server says, for as little CPU as a Python process can. ``python -m ...engines``.

They are no fakes for tests: what is measured is the gateway in front of them, so that an answer may cost them next to
nothing. The simulator computes blocks, steps and events, and would be the slower of the two.

Every prompt is answered at once and alike. Where another answer is wanted, a field of the body says so (``ORDERS``), in
words with blanks between them:

    tokens=N     the prompt's tokens, as ``usage`` reports them
    late=MS      milliseconds to the answer, on average (``spread``)
    events=N     of a stream; ``step=MS`` between two of them
    hold         a stream that ends after its first event, and stays open
    fail=STATUS  an error; cut: the connection is closed in the middle of the answer

Prints one line of JSON when it listens: ``urls`` of the engines, ``counts`` the URL of what they have answered:
``whole`` answers, ``events`` of streams, errors (``failed``), questions that they did not know (``unknown``).
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import cast

import httptools
import uvloop

MODEL = "sim"
ORDERS = "safety_identifier"
"""The field of a body that says how it is to be answered: all routers of the benchmark pass this one. sglang-router
0.3.2 drops ``user``, and every field that it does not know."""

EVENTS, STEP = 64, 5
"""Of a stream where nothing else is said: 64 events, 5 ms apart, as a small model on a fast GPU has them."""

ANSWER = 2048
"""Bytes of an unstreamed answer's body."""

CONTEXT = 1_000_000
SCRAPE = Path(__file__).parents[2] / "tests" / "data" / "fleet" / "metrics_plain.txt"
"""A real engine's 60 KB: what a gateway that scrapes has to read each second."""

EARLIEST, LATEST = 0.8, 1.2
"""What a late answer's milliseconds are multiplied by is between these (``spread``)."""

GOLDEN = 0.618033988749895
"""Its multiples modulo 1 fill the numbers from 0 to 1 evenly, however many there are."""

TICK = 0.001
SLOTS = 64
"""Milliseconds after which the wheel of streams has turned once; a step is at most that."""


def head(status: str, kind: str, *more: str) -> bytes:
    lines = (
        f"HTTP/1.1 {status}",
        f"date: {formatdate(usegmt=True)}",
        "server: uvicorn",
        f"content-type: {kind}",
        *more,
    )
    return "\r\n".join((*lines, "", "")).encode()


def whole(status: str, kind: str, body: bytes) -> bytes:
    return head(status, kind, f"content-length: {len(body)}") + body


def as_json(value: object, status: str = "200 OK") -> bytes:
    return whole(status, "application/json", json.dumps(value, separators=(",", ":")).encode())


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(choice: str, more: str = "") -> bytes:
    text = (
        f'data: {{"id":"chatcmpl-b2e29e0a4193aaa9","object":"chat.completion.chunk","created":1795217711,'
        f'"model":"{MODEL}","choices":[{{"index":0,{choice}}}]{more}}}\n\n'
    )
    return chunk(text.encode())


FIRST = head("200 OK", "text/event-stream; charset=utf-8", "vary: Origin", "transfer-encoding: chunked") + event(
    '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null', ',"prompt_token_ids":null'
)
NEXT = event('"delta":{"content":" gateway"},"logprobs":null,"finish_reason":null,"token_ids":null')
LAST = (
    event('"delta":{"content":""},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null')
    + chunk(b"data: [DONE]\n\n")
    + b"0\r\n\r\n"
)


def completion() -> tuple[bytes, bytes]:
    """An unstreamed answer, head and body, before and behind the six digits of its prompt's tokens."""

    def body(content: str) -> str:
        return (
            f'{{"id":"chatcmpl-b40ebd1c3162a159","object":"chat.completion","created":1795217710,"model":"{MODEL}",'
            f'"choices":[{{"index":0,"message":{{"role":"assistant","content":"{content}","refusal":null,'
            f'"annotations":null,"audio":null,"function_call":null,"reasoning":null}},"logprobs":null,'
            f'"finish_reason":"length","stop_reason":null,"token_ids":null}}],"service_tier":null,'
            f'"usage":{{"prompt_tokens":@@@@@@,"total_tokens":200000,"completion_tokens":400,'
            f'"prompt_tokens_details":null}},"prompt_logprobs":null,"kv_transfer_params":null}}'
        )

    text = body("gateway " * ((ANSWER - len(body(""))) // 8))
    text = text[:-1] + " " * (ANSWER - len(text)) + "}"
    before, _, behind = whole("200 OK", "application/json", text.encode()).partition(b"@@@@@@")
    return before, behind


BEFORE, BEHIND = completion()
ERRORS = {
    status: as_json({"error": {"message": "as was asked", "type": phrase, "param": None, "code": status}}, reason)
    for status, phrase, reason in (
        (400, "BadRequestError", "400 Bad Request"),
        (500, "InternalServerError", "500 Internal Server Error"),
    )
}


def spread() -> Iterator[float]:
    """By what late answers' milliseconds are multiplied: evenly from ``EARLIEST`` to ``LATEST``, so that few answers
    have the middle as their mean and median. If all were as late, the requests of many connections would soon come in
    one burst, and stay together: an answer's time would be that of its burst."""
    place = 0.0
    while True:
        place = (place + GOLDEN) % 1
        yield EARLIEST + (LATEST - EARLIEST) * place


class Wheel:
    """All streams' next events, with one timer for all: a slot is a millisecond, a stream stays in the phase in which
    it began, so that the events of many come as spread as those of many engines."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._slots: list[list[Stream]] = [[] for _ in range(SLOTS)]
        self._running = 0
        self._loop = asyncio.get_running_loop()
        self._at = 0

    def add(self, stream: Stream) -> None:
        if not self._running:
            self._at = int(self._loop.time() / TICK)
            self._loop.call_later(TICK, self._tick)
        self._running += 1
        self._slots[(self._at + stream.step) % SLOTS].append(stream)

    def _tick(self) -> None:
        now = int(self._loop.time() / TICK)
        while self._at < now:
            self._at += 1
            due, self._slots[self._at % SLOTS] = self._slots[self._at % SLOTS], []
            for stream in due:
                if stream.closed:
                    self._running -= 1
                    continue
                self._counts["events"] += 1
                stream.left -= 1
                if stream.left:
                    stream.transport.write(NEXT)
                    self._slots[(self._at + stream.step) % SLOTS].append(stream)
                else:
                    stream.transport.write(LAST)
                    self._running -= 1
        if self._running:
            self._loop.call_later(TICK, self._tick)


class Stream:
    """``left``: events to come. ``step``: milliseconds between two."""

    __slots__ = ("closed", "left", "step", "transport")

    def __init__(self, transport: asyncio.Transport, left: int, step: int) -> None:
        self.transport = transport
        self.left = left
        self.step = step
        self.closed = False


class Engine:
    """One engine's small answers, by path, and what it has counted together with the others."""

    def __init__(self, counts: Counter[str], wheel: Wheel, events: tuple[str, str] | None) -> None:
        self.counts = counts
        self.wheel = wheel
        self.spread = spread()
        card = {"id": MODEL, "object": "model", "created": 1795217710, "owned_by": "vllm", "root": "/models/sim"}
        source = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": ""}
        if events is not None:
            source |= {"endpoint": events[0], "replay_endpoint": events[1]}
        self.answers = {
            b"/health": whole("200 OK", "text/plain", b""),
            b"/version": as_json({"version": "0.32.0"}),
            b"/load": as_json({"server_load": 0}),
            b"/v1/models": as_json({"object": "list", "data": [{**card, "parent": None, "max_model_len": CONTEXT}]}),
            b"/metrics": whole("200 OK", "text/plain; version=1.0.0; charset=utf-8", SCRAPE.read_bytes()),
            b"/kv_event_sources": as_json({} if events is None else {"0": source}),
            b"/counts": b"",
        }


class Connection(asyncio.Protocol):
    """One connection to an engine; requests follow each other, as every router sends them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []
        self._url = b""
        self._stream: Stream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stream is not None:
            self._stream.closed = True

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def on_url(self, url: bytes) -> None:
        self._url = url
        self._body.clear()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = self._url.partition(b"?")[0]
        if path == b"/v1/chat/completions":
            self._answer(self._body[0] if len(self._body) == 1 else b"".join(self._body))
        elif path == b"/counts":
            self._transport.write(as_json(self._engine.counts))
        elif path == b"/tokenize":
            self._transport.write(tokenized(sum(map(len, self._body))))
        else:
            known = self._engine.answers.get(path)
            self._engine.counts["unknown"] += known is None
            self._transport.write(known or as_json({"detail": "Not Found"}, "404 Not Found"))

    def _answer(self, body: bytes) -> None:
        orders = read_orders(body)
        if late := orders.get("late"):
            seconds = int(late) / 1000 * next(self._engine.spread)
            asyncio.get_running_loop().call_later(seconds, self._begin, body, orders)
        else:
            self._begin(body, orders)

    def _begin(self, body: bytes, orders: dict[str, str]) -> None:
        counts = self._engine.counts
        if (status := orders.get("fail")) is not None:
            counts["failed"] += 1
            self._transport.write(ERRORS[int(status)])
            return
        if not streamed(body):
            if "cut" in orders:
                self._transport.write(BEFORE)
                self._transport.close()
                return
            counts["whole"] += 1
            self._transport.write(b"%s%6d%s" % (BEFORE, int(orders.get("tokens", 1)), BEHIND))
            return
        counts["events"] += 1
        self._transport.write(FIRST)
        if "cut" in orders:
            self._transport.close()
        elif "hold" not in orders:
            events, step = int(orders.get("events", EVENTS)), int(orders.get("step", STEP))
            self._stream = Stream(self._transport, events - 1, step)
            self._engine.wheel.add(self._stream)


_FIELD = f'"{ORDERS}":'.encode()


def read_orders(body: bytes) -> dict[str, str]:
    """The words of the field ``ORDERS``, by what is before their equals sign."""
    at = body.find(_FIELD)
    if at < 0:
        return {}
    text = body[at : at + 128].split(b'"')[3].decode()
    return {name: value for name, _, value in (word.partition("=") for word in text.split())}


def streamed(body: bytes) -> bool:
    at = body.find(b'"stream":')
    return at >= 0 and body[at + 9 : at + 20].lstrip().startswith(b"true")


def tokenized(size: int) -> bytes:
    """The answer of ``/tokenize`` to a body of ``size`` bytes: as many ids as such a text has."""
    count = max(1, size // 4)
    ids = b",".join([b"12345"] * count)
    return whole("200 OK", "application/json", b'{"count":%d,"max_model_len":%d,"tokens":[%s]}' % (count, CONTEXT, ids))


async def serve(events: Sequence[tuple[str, str] | None]) -> None:
    """One engine for each of ``events``: the addresses of its events and of their replay, None if it has none."""
    loop = asyncio.get_running_loop()
    counts: Counter[str] = Counter()
    wheel = Wheel(counts)
    urls = []
    for address in events:
        engine = Engine(counts, wheel, address)
        server = await loop.create_server(partial(Connection, engine), "127.0.0.1", 0, backlog=4096)
        urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    print(json.dumps({"urls": urls, "counts": urls[0] + "/counts"}), flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("events", nargs="+", help="for each engine: ADDRESS,REPLAY of its KV events; - for none")
    options = parser.parse_args()
    pairs = [each.partition(",") for each in options.events]
    uvloop.run(serve([(address, replay) if replay else None for address, _, replay in pairs]))


if __name__ == "__main__":
    main()
