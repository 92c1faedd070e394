"""Embeddings, rerank and score: prompts that are computed and answered with numbers instead of text.

The numbers mean nothing; the same input always gets the same.
"""

from __future__ import annotations

import array
import base64
import random
import zlib
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from simulator.call import Call
from simulator.errors import bad_value, missing
from simulator.prompts import Ask

DIMENSIONS = 32
"""Of an embedding: enough to be one, small enough to read."""

PAIRS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
"""The names under which ``/score`` takes its two sides."""


async def answer_embedding(call: Call) -> web.StreamResponse:
    body = call.body
    name, adapter = call.model(body.get("model"))
    prompts = call.service.prompts
    if "messages" in body:
        each = [await prompts.chat(body)]
    elif body.get("input") is None:
        raise missing("input", body)
    else:
        each = await prompts.several(body["input"], body.get("add_special_tokens") is not False, "input")
    await _compute(call, each, adapter)
    data = []
    for index, ids in enumerate(each):
        numbers = _numbers(ids, body.get("dimensions") or DIMENSIONS)
        vector: Any = numbers
        if body.get("encoding_format") == "base64":
            vector = base64.b64encode(array.array("f", numbers).tobytes()).decode()
        data.append({"index": index, "object": "embedding", "embedding": vector})
    return await call.sink.json(
        {
            "id": f"embd-{call.base_id}",
            "object": "list",
            "created": call.created,
            "model": name,
            "data": data,
            "usage": _usage(each),
        }
    )


async def answer_rerank(call: Call) -> web.StreamResponse:
    body = call.body
    name, adapter = call.model(body.get("model"))
    for field in ("query", "documents"):
        if body.get(field) is None:
            raise missing(field, body)
    query, documents = _string(body["query"]), [_string(document) for document in _list(body["documents"])]
    each = await _encode(call, [query + document for document in documents])
    await _compute(call, each, adapter)
    results: list[dict[str, Any]] = [
        {
            "index": index,
            "document": {"text": document, "multi_modal": None},
            "relevance_score": _numbers(ids, 1)[0],
        }
        for index, (document, ids) in enumerate(zip(documents, each, strict=True))
    ]
    results.sort(key=lambda result: -result["relevance_score"])
    count = sum(len(ids) for ids in each)
    return await call.sink.json(
        {
            "id": f"rerank-{call.base_id}",
            "model": name,
            "usage": {"prompt_tokens": count, "total_tokens": count},
            "results": results[: body.get("top_n") or len(results)],
        }
    )


async def answer_score(call: Call) -> web.StreamResponse:
    body = call.body
    name, adapter = call.model(body.get("model"))
    pair = next((pair for pair in PAIRS if all(body.get(field) is not None for field in pair)), None)
    if pair is None:
        raise missing("queries", body)
    left, right = (_list(body[field]) for field in pair)
    if len(left) == 1:
        left = left * len(right)
    if len(left) != len(right):
        raise bad_value("Input lengths must be either 1:1, 1:N or N:N", pair[0], len(left))
    texts = [_string(one) + _string(two) for one, two in zip(left, right, strict=True)]
    each = await _encode(call, texts)
    await _compute(call, each, adapter)
    data = [{"index": index, "object": "score", "score": _numbers(ids, 1)[0]} for index, ids in enumerate(each)]
    return await call.sink.json(
        {
            "id": f"score-{call.base_id}",
            "object": "list",
            "created": call.created,
            "model": name,
            "data": data,
            "usage": _usage(each),
        }
    )


async def _compute(call: Call, prompts: Sequence[array.array[int]], adapter: str | None) -> None:
    """Let the engine compute the prompts, as any others: they wait, take blocks and time."""
    limit = call.service.prompts.limit
    asks = [Ask(ids=ids, max_tokens=min(1, limit({}, ids, 1)), adapter=adapter, pooling=True) for ids in prompts]
    await call.generate(asks).complete()


async def _encode(call: Call, texts: Sequence[str]) -> list[array.array[int]]:
    return [await call.service.prompts.text(text, True) for text in texts]


def _numbers(ids: array.array[int], count: int) -> list[float]:
    chance = random.Random(zlib.crc32(ids.tobytes()))
    return [round(chance.random(), 6) for _ in range(count)]


def _usage(prompts: Sequence[array.array[int]]) -> dict[str, Any]:
    count = sum(len(ids) for ids in prompts)
    usage: dict[str, Any] = {"prompt_tokens": count, "total_tokens": count, "completion_tokens": 0}
    return {**usage, "prompt_tokens_details": None, "completion_tokens_details": None}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _string(value: Any) -> str:
    """A text, or an object that holds one."""
    return str(value.get("text") or value.get("content") or "") if isinstance(value, dict) else str(value)
