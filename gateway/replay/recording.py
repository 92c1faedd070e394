"""What a trace's file holds, whatever its format, and the workload that is made of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low

from gateway.errors import ConfigError
from gateway.replay.workload import VLLM_BLOCK, Call

TEMPLATE_CALLS, TEMPLATE_SHARE = 20, 0.01
"""A block in more calls than this, and this share of all, is a template that conversations share, not one of them."""


@dataclass(frozen=True, slots=True)
class Line:
    """One request of a trace. ``at``: seconds. ``blocks``: from 0, in the order in which the file first has them.
    ``session``: its conversation, where the line names it. ``traffic``: its class, where it has one."""

    at: float
    input_tokens: int
    output_tokens: int
    blocks: Sequence[int]
    session: str | None = None
    traffic: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace as it was read.

    lines       by time.
    block_size  tokens of one block id.
    prefixes    whether the trace says what prompts share; else each prompt's blocks are its own.
    failed      requests that were left out, since they have no tokens.
    """

    lines: Sequence[Line]
    block_size: int
    prefixes: bool = True
    failed: int = 0


class Trace:
    """A ``Workload`` of a recording, at a load of one's choice. Open: calls come whatever became of earlier ones.

    ``rate``: requests a second that time is scaled to; None: as recorded. Timestamps may come in batches (Mooncake's:
    one each 3 s): each call is moved by chance within its batch (never past the next), by ``seed``, before time is
    scaled.
    """

    def __init__(self, name: str, recording: Recording, *, rate: float | None = None, seed: int = 0) -> None:
        self.name = name
        self.block_size = recording.block_size
        lines = recording.lines
        times = spread([line.at for line in lines], random.Random(seed))
        scale = 1.0
        if rate is not None:
            if not rate > 0:
                raise ConfigError("the rate must be above 0 requests/s")
            seconds = times[-1] - times[0]
            if not seconds > 0:
                raise ConfigError(f"{name}: all {len(lines)} requests come at once: there is no load to scale")
            scale = (len(lines) - 1) / seconds / rate
        began, names = times[0], sessions(recording)
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


def sessions(recording: Recording) -> list[str | None]:
    """What tells each line's conversation. Where no line names it: the first of its blocks that is no template of many
    conversations; nothing where the trace has no prefixes. Where some do, the others have none."""
    lines = recording.lines
    if not recording.prefixes or any(line.session is not None for line in lines):
        return [line.session for line in lines]
    calls = Counter(block for line in lines for block in line.blocks)
    template = max(TEMPLATE_CALLS, TEMPLATE_SHARE * len(lines))
    return [str(next((b for b in line.blocks if calls[b] <= template), line.blocks[-1])) for line in lines]


class OwnBlocks:
    """Hands out blocks that no other prompt has."""

    def __init__(self, block_size: int = VLLM_BLOCK) -> None:
        self._block_size = block_size
        self._next = 0

    def of(self, tokens: int) -> Sequence[int]:
        """As many as ``tokens`` need, numbered on."""
        begin, self._next = self._next, self._next - (-tokens // self._block_size)
        return range(begin, self._next)
