"""Answers' blocks, told by the next prompts of their conversations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.commands.replay.event_loop import replay
from gateway.commands.replay.fleet import kinds
from gateway.commands.replay.policies import load_policy
from gateway.commands.replay.recording import Recording, Trace, with_answers
from gateway.commands.replay.scene import Scene
from gateway.commands.replay.sources import read
from gateway.commands.replay.workload import TraceCall

FIRST = TraceCall(0.0, 40, 30, (1, 2, 3), "a")  # two blocks and a half, and an answer up to the middle of the fifth
OTHER = TraceCall(1.0, 40, 30, (1, 2, 9), "b")
NEXT = TraceCall(2.0, 90, 10, (1, 2, 4, 5, 6, 7), "a")


def told(*lines: TraceCall, **more: bool) -> list[tuple[int, ...]]:
    return [tuple(line.blocks) for line in with_answers(Recording(lines, 16, **more)).lines]


def test_the_next_prompt_of_a_conversation_tells() -> None:
    assert told(FIRST, OTHER, NEXT) == [(1, 2, 4, 5), OTHER.blocks, NEXT.blocks]
    # Three turns: each from the one behind it.
    last = TraceCall(9.0, 110, 5, (1, 2, 4, 5, 6, 8, 10), "a")
    assert told(FIRST, NEXT, last)[1] == (1, 2, 4, 5, 6, 8)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (FIRST, replace(NEXT, session="b")),
        (FIRST, replace(NEXT, input_tokens=69)),
        (FIRST, replace(NEXT, blocks=(1, 11, 4, 5, 6, 7))),
        (replace(FIRST, output_tokens=7), NEXT),  # it fills no block
        (replace(FIRST, input_tokens=15, blocks=(3,)), NEXT),  # nothing says that it goes on from this one
        (replace(FIRST, blocks=(1, 2, 3, 12, 13)), NEXT),  # it has its own
        (replace(FIRST, session=None), replace(NEXT, session=None)),
    ],
)
def test_where_it_cannot_be_told_nothing_changes(first: TraceCall, then: TraceCall) -> None:
    assert told(first, then) == [first.blocks, then.blocks]


def test_without_prefixes_nothing_changes() -> None:
    assert told(FIRST, NEXT, prefixes=False) == [FIRST.blocks, NEXT.blocks]


@pytest.mark.parametrize(("session", "blocks"), [({"session": "a"}, 3), ({}, 2)])
def test_the_engine_that_gave_an_answer_holds_it(tmp_path: Path, session: dict[str, str], blocks: int) -> None:
    lines = [
        {"timestamp": 0, "input_length": 1024, "output_length": 600, "hash_ids": [1, 2], **session},
        {"timestamp": 60_000, "input_length": 2200, "output_length": 10, "hash_ids": [1, 2, 3, 4, 5], **session},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    result = replay(Trace("t", read(path)), load_policy("default"), Scene(fleet=kinds("2 x 70b-tp4")), seed=1)
    assert result.records[1].expected_hit == result.records[1].hit_tokens == blocks * 512
