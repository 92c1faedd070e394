"""The content of a trace file in any format, and the workload that is made from it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median_low

from gateway.commands.replay.workload import VLLM_BLOCK, TraceCall
from gateway.errors import ConfigError

TEMPLATE_CALLS, TEMPLATE_SHARE = 20, 0.01
"""A block in more calls than this, and in more than this share of all, is a template that conversations share and does
not identify one."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace as it was read.

    lines       its requests by time, as they were recorded. Their blocks are numbered from 0 in the order of their
                first use in the file. A session is one that the file names.
    block_size  tokens of one block id.
    prefixes    whether the trace says what prompts share; else each prompt's blocks are its own.
    failed      requests that were left out, since they have no tokens.
    """

    lines: Sequence[TraceCall]
    block_size: int
    prefixes: bool = True
    failed: int = 0


class Trace:
    """A ``Workload`` of a recording, at a given load. It is open: calls come whatever happens to earlier ones.

    ``rate``: requests a second that time is scaled to; None: as recorded. Timestamps may come in batches (Mooncake's:
    one every 3 s). Each call is moved at random within its batch and never past the next one, by ``seed``, before time
    is scaled.
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
            replace(line, at=(at - began) * scale, session=session)
            for at, line, session in zip(times, lines, names, strict=True)
        )

    def start(self) -> Sequence[TraceCall]:
        return self._calls

    def answered(self, call: TraceCall, at: float) -> Sequence[TraceCall]:
        return ()


def spread(times: Sequence[float], chance: random.Random) -> list[float]:
    """Move each of the ascending ``times`` (at least one) by 0 up to the usual gap between two; the result is
    ascending."""
    distinct = sorted(set(times))
    gaps = [later - earlier for earlier, later in pairwise(distinct)]
    usual = median_low(gaps) if gaps else 0.0
    widths = dict(zip(distinct, [*(min(gap, usual) for gap in gaps), usual], strict=True))
    return sorted(at + widths[at] * chance.random() for at in times)


def sessions(recording: Recording) -> list[str | None]:
    """The conversation of each line. If no line names it: the first of its blocks that is no template of many
    conversations, or none if the trace has no prefixes. If some lines name theirs, the others have none."""
    lines = recording.lines
    if not recording.prefixes or any(line.session is not None for line in lines):
        return [line.session for line in lines]
    calls = Counter(block for line in lines for block in line.blocks)
    template = max(TEMPLATE_CALLS, TEMPLATE_SHARE * len(lines))
    return [str(next((b for b in line.blocks if calls[b] <= template), line.blocks[-1])) for line in lines]


class OwnBlocks:
    """Hands out new blocks, which no other prompt has."""

    def __init__(self) -> None:
        self._next = 0

    def of(self, tokens: int) -> Sequence[int]:
        """As many new blocks as ``tokens`` tokens need."""
        begin, self._next = self._next, self._next - (-tokens // VLLM_BLOCK)
        return range(begin, self._next)


def with_answers(recording: Recording) -> Recording:
    """Add the blocks of answers that the trace does not name, from the next prompt of each conversation.

    The prompt of a turn contains the previous answer. So if a session's next prompt begins with all whole blocks of
    this prompt and is long enough to hold the answer, then its following blocks are the answer's. The engine that
    generated the answer holds them from then on, and a policy that keeps the conversation there hits them, as in
    production. A line that already has them is unchanged, and so is one whose prompt fills no block: too little is
    known of what continues it.
    """
    size, following = recording.block_size, dict[str, TraceCall]()
    if not recording.prefixes or all(line.session is None for line in recording.lines):
        return recording
    lines: list[TraceCall] = []
    for line in reversed(recording.lines):
        later = None if line.session is None else following.get(line.session)
        if line.session is not None:
            following[line.session] = line
        lines.append(line if later is None else replace(line, blocks=_answered(line, later, size)))
    return replace(recording, lines=lines[::-1])


def _answered(line: TraceCall, later: TraceCall, size: int) -> Sequence[int]:
    """The blocks of ``line`` with the whole blocks of its answer."""
    prompt, end = line.input_tokens // size, line.input_tokens + line.output_tokens
    if not prompt or len(line.blocks) > -(-line.input_tokens // size):
        return line.blocks
    if later.input_tokens < end or later.blocks[:prompt] != line.blocks[:prompt] or end // size == prompt:
        return line.blocks
    return later.blocks[: end // size]
