"""Mooncake's trace format: one JSON object a line, such as

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353, 2354, ...]}

``timestamp``: milliseconds. ``hash_ids``: one for each 512 tokens of the prompt, the last for what remains; an id
stands for its block and everything before it, so that equal leading ids are a shared prefix. The answers have none: a
next turn cannot hit what was generated. Traces: kvcache-ai/Mooncake, FAST25-release/traces, Apache-2.0.

A line may name its conversation, by a ``session``. Or by a ``chat_id``; where that is each request's own, as in the
traces of Qwen's Bailian, ``parent_chat_id`` names the request that it goes on from (-1: none), and a conversation is
all that goes back to one request. In a trace without either, conversations are guessed from the blocks.

It may have a ``class`` (such as "batch") and a ``priority`` (an integer, less is sooner, as vLLM has it). Where it has
only a priority, that is its class.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median_low
from typing import Any

from gateway.errors import ConfigError
from gateway.replay.workload import MAX_TOKENS, Call

BLOCK_TOKENS = 512

NO_PARENT = "-1"
"""In the place of a ``parent_chat_id``: the request begins a conversation."""

MOST_PRIORITY = 1 << 31
"""And the least, negated: what a request may ask for."""

TEMPLATE_CALLS, TEMPLATE_SHARE = 20, 0.01
"""A block in more calls than this, and this share of all, is a template that conversations share, not one of them."""


@dataclass(frozen=True, slots=True)
class Line:
    """One request of a trace. ``at``: seconds. ``blocks``: from 0, in the order in which the file first has them.
    ``session``: its conversation, where the line names it. ``traffic``: its class, where it has one."""

    at: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    session: str | None = None
    traffic: str = ""
    priority: int = 0


def read(path: Path, first: int | None = None) -> list[Line]:
    """The lines of a trace, by time; of the first ``first`` lines only, where it is given.

    Raises ConfigError with the line's number and its culprit.
    """
    lines: list[Line] = []
    blocks, chats = _Blocks(), _Chats()
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                if first is not None and len(lines) >= first:
                    break
                if text.strip():
                    try:
                        lines.append(_line(text, number, blocks, chats))
                    except ValueError as error:
                        raise ConfigError(f"{path}:{number}: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: byte 0x{error.object[error.start]:02x}") from None
    if not lines:
        raise ConfigError(f"{path}: has no requests")
    lines.sort(key=lambda line: line.at)
    return lines


class Trace:
    """A ``Workload`` of a trace's lines, at a load of one's choice. Open: calls come whatever became of earlier ones.

    ``rate``: requests a second that time is scaled to; None: as recorded. Mooncake's timestamps come in batches, one
    each 3 s: each call is moved by chance within its batch (never past the next), by ``seed``, before time is scaled.
    """

    block_size = BLOCK_TOKENS

    def __init__(self, name: str, lines: Sequence[Line], *, rate: float | None = None, seed: int = 0) -> None:
        self.name = name
        times = spread([line.at for line in lines], random.Random(seed))
        scale = 1.0
        if rate is not None:
            if not rate > 0:
                raise ConfigError("the rate must be above 0 requests/s")
            seconds = times[-1] - times[0]
            if not seconds > 0:
                raise ConfigError(f"{name}: all {len(lines)} requests come at once: there is no load to scale")
            scale = (len(lines) - 1) / seconds / rate
        began, names = times[0], sessions(lines)
        self._calls = tuple(
            Call(
                at=(at - began) * scale,
                input_tokens=line.input_tokens,
                output_tokens=line.output_tokens,
                blocks=line.blocks,
                session=session,
                traffic=line.traffic,
                priority=line.priority,
            )
            for at, line, session in zip(times, lines, names, strict=True)
        )

    def start(self) -> Sequence[Call]:
        return self._calls

    def answered(self, call: Call, at: float) -> Sequence[Call]:
        return ()


def spread(times: Sequence[float], chance: random.Random) -> list[float]:
    """Ascending ``times`` (at least one), each moved by 0 up to the usual gap between two, in ascending order."""
    distinct = sorted(set(times))
    gaps = [later - earlier for earlier, later in pairwise(distinct)]
    usual = median_low(gaps) if gaps else 0.0
    widths = dict(zip(distinct, [*(min(gap, usual) for gap in gaps), usual], strict=True))
    return sorted(at + widths[at] * chance.random() for at in times)


def sessions(lines: Sequence[Line]) -> list[str | None]:
    """What tells each line's conversation. Where no line names it: the first of its blocks that is no template of many
    conversations. Where some do, the others have none."""
    if any(line.session is not None for line in lines):
        return [line.session for line in lines]
    calls = Counter(block for line in lines for block in line.blocks)
    template = max(TEMPLATE_CALLS, TEMPLATE_SHARE * len(lines))
    return [str(next((b for b in line.blocks if calls[b] <= template), line.blocks[-1])) for line in lines]


class _Blocks:
    """The ids of a file, numbered anew from 0, each held to the one that it first followed."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int, int]] = {}
        """id -> its number here, the number of the id before it (-1: none), the line that first had it"""

    def numbers(self, ids: list[Any], line: int) -> tuple[int, ...]:
        known, before, found = self._known, -1, []
        for i, name in enumerate(ids):
            if type(name) is not int:
                raise ValueError(f"hash_ids[{i}] must be an integer, found {_shown(name)}")
            number, follows, first = known.setdefault(name, (len(known), before, line))
            if follows != before:
                raise ValueError(
                    f"hash_ids[{i}]: {name} follows another id than on line {first}, but an id stands for all before it"
                )
            found.append(number)
            before = number
        return tuple(found)


class _Chats:
    """The conversations of a file whose requests name those that they go on from."""

    def __init__(self) -> None:
        self._roots: dict[str, str] = {}
        """chat_id -> that of the conversation's first request, or what is known of it"""

    def session(self, chat: str, parent: str | None) -> str:
        """Of a request after those that came before. A parent that the file does not have stands for its own."""
        root = chat if parent is None else self._roots.setdefault(parent, parent)
        return self._roots.setdefault(chat, root)


def _line(text: str, number: int, blocks: _Blocks, chats: _Chats) -> Line:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON: {getattr(error, 'msg', error)}") from None
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {_shown(value)}")
    milliseconds = value.get("timestamp")
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float) or not 0 <= milliseconds < 1e15:
        raise ValueError(f"timestamp must be milliseconds of at least 0, found {_shown(milliseconds)}")
    tokens = {key: _count(value, key) for key in ("input_length", "output_length")}
    ids = value.get("hash_ids")
    if not isinstance(ids, list):
        raise ValueError(f"hash_ids must be a list, found {_shown(ids)}")
    needed = -(-tokens["input_length"] // BLOCK_TOKENS)
    if len(ids) != needed:
        raise ValueError(
            f"hash_ids must have {needed} ids for an input_length of {tokens['input_length']}, one for each "
            f"{BLOCK_TOKENS} tokens, found {len(ids)}"
        )
    return Line(
        milliseconds / 1000,
        tokens["input_length"],
        tokens["output_length"],
        blocks.numbers(ids, number),
        _session(value, chats),
        *_traffic(value),
    )


def _traffic(value: dict[str, Any]) -> tuple[str, int]:
    """Class and priority."""
    priority = value.get("priority")
    if priority is not None and (type(priority) is not int or abs(priority) > MOST_PRIORITY):
        raise ValueError(f"priority must be an integer in -{MOST_PRIORITY}..{MOST_PRIORITY}, found {_shown(priority)}")
    name = _name(value, "class")
    if name is None:
        name = "" if priority is None else f"priority {priority}"
    return name, priority or 0


def _session(value: dict[str, Any], chats: _Chats) -> str | None:
    if (session := _name(value, "session")) is not None:
        return session
    if (chat := _name(value, "chat_id")) is None:
        return None
    parent = _name(value, "parent_chat_id")
    return chats.session(chat, None if parent == NO_PARENT else parent)


def _name(value: dict[str, Any], key: str) -> str | None:
    """A text or an integer, as a text; None where there is none, or an empty one."""
    found = value.get(key)
    if found in (None, ""):
        return None
    if type(found) is not int and not isinstance(found, str):
        raise ValueError(f"{key} must be a text or an integer, found {_shown(found)}")
    return str(found)


def _count(value: dict[str, Any], key: str) -> int:
    found = value.get(key)
    if type(found) is not int or not 1 <= found <= MAX_TOKENS:
        raise ValueError(f"{key} must be an integer in 1..{MAX_TOKENS}, found {_shown(found)}")
    return found


def _shown(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case list() | dict():
            return "a list" if isinstance(value, list) else "a mapping"
    return repr(value)[:60]
