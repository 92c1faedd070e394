"""Cache of prompts as engines reported them: token ids, and for chats with images the position of each image. A body
that is in the cache needs no request to an engine.

Rules: bounded in ids, the least recently used is evicted first; and in time, since the content behind a URL may change.
An answer that contradicts itself is ignored. Pure.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from xxhash import xxh3_128

from gateway.core.prompt import MediaItem, Prompt, estimate, joined
from gateway.tokens.reasons import Why

MAX_IDS = 4_000_000
"""Capacity per model: 16 MB, a thousand chats of 4,000 tokens."""

SLICE = 64 * 1024
"""Bytes of JSON ids that are parsed at a time: half a millisecond."""

OPENING = 32
"""Last ids of a prompt that are not used for the conversation's next turn: at the start of an answer a template may
open a thinking block, and leave it out in later turns. Two blocks."""

AGE = 600.0
"""Seconds after which an answer expires."""

NO_PROMPT = frozenset(
    {
        "cache_salt",
        "frequency_penalty",
        "kv_transfer_params",
        "max_completion_tokens",
        "max_output_tokens",
        "max_tokens",
        "metadata",
        "model",
        "n",
        "presence_penalty",
        "priority",
        "prompt_cache_key",
        "request_id",
        "seed",
        "session_id",
        "stop",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "top_k",
        "top_p",
        "user",
    }
)
"""Fields that do not change the ids, unless the prompt is to be truncated. All other fields may change them."""


class _Range(msgspec.Struct):
    offset: int
    length: int


class _Features(msgspec.Struct):
    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[_Range]]


class _Reported(msgspec.Struct):
    """``token_ids``: of a render route. ``tokens``: of ``/tokenize``."""

    token_ids: msgspec.Raw = msgspec.Raw(b"")
    tokens: msgspec.Raw = msgspec.Raw(b"")
    features: _Features | None = None


_DECODER = msgspec.json.Decoder(_Reported)
_IDS = msgspec.json.Decoder(list[int])


def reading(raw: bytes) -> Generator[None, None, Prompt | None]:
    """The prompt in an answer of ``/tokenize`` or of a render route (vLLM's ``GenerateRequest``), read in slices. None
    if there is none, or if two media overlap, as the sound of a video can: of such media engines report only a part."""
    ids = array("I")
    try:
        reported = _DECODER.decode(raw)
        for some in _slices(bytes(reported.token_ids) or bytes(reported.tokens)):
            ids.extend(_IDS.decode(some))
            yield
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
        return None
    places: list[tuple[int, int, str]] = []
    if reported.features is not None:
        hashes, ranges = reported.features.mm_hashes, reported.features.mm_placeholders
        for modality in hashes.keys() | ranges.keys():
            names, of_these = hashes.get(modality, ()), ranges.get(modality, ())
            if len(names) != len(of_these) or not all(names):
                return None
            places += [(one.offset, one.offset + one.length, name) for name, one in zip(names, of_these, strict=True)]
    places.sort()
    ends = [0, *(end for _, end, _ in places)]
    starts = [*(start for start, _, _ in places), len(ids)]
    overlap = any(end > start for end, start in zip(ends, starts, strict=True))
    if not ids or overlap or any(start >= end for start, end, _ in places):
        return None
    return Prompt(ids=ids, count=len(ids), exact=True, media=tuple(MediaItem(start, name) for start, _, name in places))


def _slices(numbers: bytes) -> Iterator[bytes]:
    """A JSON array of numbers as several, each of about ``SLICE`` bytes. Of anything else, some part is no JSON."""
    start, end = 1, len(numbers) - 1
    if end - start <= SLICE or not (numbers.startswith(b"[") and numbers.endswith(b"]")):
        yield numbers
        return
    while start < end:
        comma = numbers.find(b",", start + SLICE)
        stop = comma if comma >= 0 else end
        yield b"[" + numbers[start:stop] + b"]"
        start = stop + 1


def prompt_key(route: str, fields: Mapping[str, msgspec.Raw], adapter: str | None, truncated: bool) -> bytes:
    """The cache key of a body's prompt: a digest of all fields that may change it."""
    digest = xxh3_128(f"{route}\0{adapter or ''}".encode("utf-8", "surrogatepass"))
    for name, value in fields.items():
        if truncated or name not in NO_PROMPT:
            view = memoryview(value)
            digest.update(f"\0{name}\0{len(view)}\0".encode("utf-8", "surrogatepass"))
            digest.update(view)
    return digest.digest()


def turn_keys(
    route: str, fields: Mapping[str, msgspec.Raw], messages: Sequence[Any], adapter: str | None
) -> list[bytes]:
    """For each message, the cache key of the conversation up to it."""
    others = {name: value for name, value in fields.items() if name != "messages"}
    turn, turns = prompt_key(route, others, adapter, truncated=False), []
    for message in messages:
        turn = xxh3_128(turn + msgspec.json.encode(message)).digest()
        turns.append(turn)
    return turns


def continued(reported: Prompt, rest: Sequence[Any]) -> Prompt:
    """The prompt of a conversation whose beginning an engine ``reported``. ``rest``: the messages after it.

    The engine's ids are used up to the start of the answer, since a template may render that differently in a later
    turn. The rest is an estimate.
    """
    known = joined(reported.ids)[: max(0, len(reported.ids) - OPENING)]
    more = estimate(msgspec.json.encode(rest), "")
    ids = known + joined(more.ids)
    return Prompt(ids=ids, count=len(reported.ids) + more.count, exact=True, why=str(Why.UNTOLD))


class ReportedPrompts:
    """The prompts of one model, by the ``prompt_key`` of their bodies. ``limit``: ids of all prompts together."""

    def __init__(self, limit: int = MAX_IDS) -> None:
        self._limit = limit
        self._size = 0
        self._known: OrderedDict[bytes, tuple[float, Prompt]] = OrderedDict()
        self._names: dict[bytes, bytes] = {}  # by turn
        self._turns: dict[bytes, bytes] = {}  # by name

    def __len__(self) -> int:
        return len(self._known)

    def find(self, name: bytes, now: float) -> Prompt | None:
        """``now``: Clock.monotonic()."""
        at, prompt = self._known.get(name, (0.0, None))
        if prompt is None:
            return None
        if now - at > AGE:
            self._forget(name)
            return None
        self._known.move_to_end(name)
        return prompt

    def find_continued(self, turns: Sequence[bytes], now: float) -> tuple[int, Prompt] | None:
        """The longest conversation that these ``turns`` go on from: how many of them it has, and its prompt."""
        for count in range(len(turns) - 1, 0, -1):
            name = self._names.get(turns[count - 1])
            if name is not None and (prompt := self.find(name, now)) is not None:
                return count, prompt
        return None

    def keep(self, name: bytes, prompt: Prompt, now: float, turn: bytes | None = None) -> None:
        """``turn``: of its last message, as of ``turn_keys``."""
        self._forget(name)
        if turn is not None:
            self._names[turn], self._turns[name] = name, turn
        self._known[name] = (now, prompt)
        self._size += len(prompt.ids)
        while self._size > self._limit:
            self._forget(next(iter(self._known)))

    def _forget(self, name: bytes) -> None:
        if (known := self._known.pop(name, None)) is not None:
            self._size -= len(known[1].ids)
        if (turn := self._turns.pop(name, None)) is not None and self._names.get(turn) == name:
            del self._names[turn]
