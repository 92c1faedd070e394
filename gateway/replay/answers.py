"""The blocks of answers, where a trace does not name them but its conversations' next prompts do.

A turn's prompt holds what was said before it, the last answer among it. So where a line names its session, and the
session's next prompt begins with all whole blocks of this one and is long enough to hold the answer as well, that
prompt's next blocks are the answer's: the engine that gave it holds them from then on, and a policy that keeps the
conversation there hits them, as in service.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.replay.recording import Line, Recording


def with_answers(recording: Recording) -> Recording:
    """With the answers' blocks that can be told. Nothing changes in lines that have them already, or whose prompt fills
    no block: that says too little of what the next one goes on from."""
    size, following = recording.block_size, dict[str, Line]()
    if not recording.prefixes or all(line.session is None for line in recording.lines):
        return recording
    lines: list[Line] = []
    for line in reversed(recording.lines):
        later = None if line.session is None else following.get(line.session)
        if line.session is not None:
            following[line.session] = line
        lines.append(line if later is None else replace(line, blocks=_answered(line, later, size)))
    return replace(recording, lines=lines[::-1])


def _answered(line: Line, later: Line, size: int) -> Sequence[int]:
    """The blocks of ``line``, and those of its answer that are whole."""
    prompt, end = line.input_tokens // size, line.input_tokens + line.output_tokens
    if not prompt or len(line.blocks) > -(-line.input_tokens // size):
        return line.blocks
    if later.input_tokens < end or later.blocks[:prompt] != line.blocks[:prompt] or end // size == prompt:
        return line.blocks
    return later.blocks[: end // size]
