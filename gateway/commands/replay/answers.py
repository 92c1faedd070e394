"""Finds the blocks of answers in a trace that does not name them, from the next prompt of each conversation.

The prompt of a turn contains the previous answer. So if a line names its session, and the session's next prompt begins
with all whole blocks of this prompt and is long enough to hold the answer, then the following blocks of that prompt are
the answer's. The engine that generated the answer holds them from then on, and a policy that keeps the conversation
there hits them, as in production.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.commands.replay.recording import Recording
from gateway.commands.replay.workload import Call


def with_answers(recording: Recording) -> Recording:
    """Add the answers' blocks that can be found. A line that already has them is unchanged, and so is one whose prompt
    fills no block: too little is known of what continues it."""
    size, following = recording.block_size, dict[str, Call]()
    if not recording.prefixes or all(line.session is None for line in recording.lines):
        return recording
    lines: list[Call] = []
    for line in reversed(recording.lines):
        later = None if line.session is None else following.get(line.session)
        if line.session is not None:
            following[line.session] = line
        lines.append(line if later is None else replace(line, blocks=_answered(line, later, size)))
    return replace(recording, lines=lines[::-1])


def _answered(line: Call, later: Call, size: int) -> Sequence[int]:
    """The blocks of ``line`` with the whole blocks of its answer."""
    prompt, end = line.input_tokens // size, line.input_tokens + line.output_tokens
    if not prompt or len(line.blocks) > -(-line.input_tokens // size):
        return line.blocks
    if later.input_tokens < end or later.blocks[:prompt] != line.blocks[:prompt] or end // size == prompt:
        return line.blocks
    return later.blocks[: end // size]
