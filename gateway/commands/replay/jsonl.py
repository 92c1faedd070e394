"""Traces of one JSON object a line: Mooncake's format, Qwen's Bailian's, and lengths alone.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353, 2354, ...]}

``timestamp``: milliseconds; seconds in a file whose lines have a ``parent_chat_id``, as Bailian's. ``hash_ids``: one
for each block of the prompt, and perhaps of the answer, in all lines or in none. Equal leading ids are a shared prefix,
whether an id stands for its block only or for all before it, too. A block's tokens follow from how many ids there are.
Where no line has ``hash_ids``, no prompt shares anything. A line may name its conversation, by a ``session`` or by the
``parent_chat_id`` that its ``chat_id`` goes on from (-1: none), and have a ``class`` and a ``priority``: where it has
only a priority, that is its class.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gateway.commands.replay.recording import OwnBlocks
from gateway.commands.replay.workload import MAX_TOKENS, VLLM_BLOCK, TraceCall

BLOCK_SIZES = (512, 256, 128, 64, 32, 16)
"""Block sizes in tokens that a trace may have: Mooncake's, vLLM's, and those between."""

MILLISECONDS, SECONDS = ("milliseconds", 1e-3), ("seconds", 1.0)
"""The units that a timestamp may have, in seconds."""

LATEST = 1e15
"""The largest timestamp: beyond it fractions of a second are lost."""

PARENT = "parent_chat_id"
NO_PARENT = "-1"
"""The value of ``parent_chat_id`` of a request that begins a conversation."""

MOST_PRIORITY = 1 << 31
"""The largest priority, and negated the smallest: what a request may ask for."""


class JsonLines:
    """Reads lines; ``lines`` are the requests so far."""

    failed = 0

    def __init__(self) -> None:
        self.lines: list[TraceCall] = []
        self.prefixes = False
        self._own = OwnBlocks()
        self._unit = MILLISECONDS
        self._first: int | None = None
        """The number of the first request's line."""
        self._layouts = [(size, answers) for answers in (False, True) for size in BLOCK_SIZES]
        """What the ids of the file can mean: the block size, and whether they include answers."""
        self._known: dict[tuple[int, int], int] = {}
        """(number of the previous id, or -1; id) -> its number, counted from 0: each stands for its block and all
        before it, as vLLM's hashes do."""
        self._roots: dict[str, str] = {}
        """chat_id -> the chat_id of the conversation's first known request"""

    @property
    def block_size(self) -> int:
        return self._layouts[0][0] if self.prefixes else VLLM_BLOCK

    def take(self, text: str, number: int) -> None:
        """Read one line. Raises ValueError."""
        value = _object(text)
        if self._first is None:
            self._unit = SECONDS if PARENT in value else MILLISECONDS
        name, seconds = self._unit
        at = value.get("timestamp")
        if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < LATEST:
            raise ValueError(f"timestamp must be {name} of at least 0, found {_shown(at)}")
        prompt, output = _count(value, "input_length"), _count(value, "output_length")
        blocks = self._blocks(value.get("hash_ids"), prompt, output, number)
        self.lines.append(TraceCall(at * seconds, prompt, output, blocks, self._session(value), *_traffic(value)))

    def _blocks(self, ids: Any, prompt: int, output: int, number: int) -> Sequence[int]:
        if self._first is None:
            self._first, self.prefixes = number, ids is not None
        if ids is None and self.prefixes:
            raise ValueError(f"hash_ids must be a list, found nothing: line {self._first} has them, so all must")
        if ids is not None and not self.prefixes:
            raise ValueError(f"hash_ids are of no use here: line {self._first} has none, so none may have them")
        if ids is None:
            return self._own.of(prompt)
        if not isinstance(ids, list):
            raise ValueError(f"hash_ids must be a list, found {_shown(ids)}")
        self._narrow(len(ids), prompt, output)
        known, before, found = self._known, -1, []
        for i, name in enumerate(ids):
            if type(name) is not int:
                raise ValueError(f"hash_ids[{i}] must be an integer, found {_shown(name)}")
            before = known.setdefault((before, name), len(known))
            found.append(before)
        return tuple(found)

    def _narrow(self, ids: int, prompt: int, output: int) -> None:
        """Keep the layouts that give this line its number of ``ids``. Raises ValueError if none is left."""
        left = [(size, answers) for size, answers in self._layouts if ids == _needed(size, answers, prompt, output)]
        if not left:
            size, answers = self._layouts[0]
            of = f"an input_length of {prompt}" + (f" and an output_length of {output}" if answers else "")
            raise ValueError(
                f"hash_ids must have {_needed(size, answers, prompt, output)} ids for {of}, one for each {size} "
                f"tokens, found {ids}"
            )
        self._layouts = left

    def _session(self, value: dict[str, Any]) -> str | None:
        """The conversation: as named, or that of the request that this one continues. A parent that is not in the file
        stands for its own."""
        if (session := _name(value, "session")) is not None:
            return session
        if (chat := _name(value, "chat_id")) is None:
            return None
        parent = _name(value, PARENT)
        root = chat if parent in (None, NO_PARENT) else self._roots.setdefault(parent, parent)
        return self._roots.setdefault(chat, root)


def _needed(size: int, answers: bool, prompt: int, output: int) -> int:
    return -(-(prompt + output * answers) // size)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON: {getattr(error, 'msg', error)}") from None
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {_shown(value)}")
    return value


def _traffic(value: dict[str, Any]) -> tuple[str, int]:
    """Read the class and the priority."""
    priority = value.get("priority")
    if priority is not None and (type(priority) is not int or abs(priority) > MOST_PRIORITY):
        raise ValueError(f"priority must be an integer in -{MOST_PRIORITY}..{MOST_PRIORITY}, found {_shown(priority)}")
    name = _name(value, "class")
    if name is None:
        name = "" if priority is None else f"priority {priority}"
    return name, priority or 0


def _name(value: dict[str, Any], key: str) -> str | None:
    """A text, or an integer as a text; None if it is missing or empty."""
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
    if value is None:
        return "nothing"
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a mapping"
    return repr(value)[:60]
