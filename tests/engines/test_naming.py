"""The simulator's events of blocks with media are vLLM's: what is tested on it holds for a real engine."""

from __future__ import annotations

import json
import random
from typing import Any

from simulator.blocks import HashChain, MediaItem
from tests.engines.conftest import Ask

CASES = 500


def case(chance: random.Random) -> dict[str, Any]:
    """Some media in a row, now and then with nothing between two of them."""
    media, at = [], 0
    for _ in range(chance.randrange(6)):
        offset = at + chance.choice([0, 0, chance.randrange(40)])
        length = chance.randrange(1, 60)
        media.append([offset, length, f"hash-{chance.randrange(3)}"])
        at = offset + length
    return {
        "size": chance.choice([4, 16, 32]),
        "blocks": chance.randrange(1, 30),
        "media": media,
        "salt": chance.choice([None, "salt"]),
        "adapter": chance.choice([None, "lora"]),
    }


def test_extra_keys_are_vllms(ask_vllm: Ask) -> None:
    chance = random.Random(5)
    cases = [case(chance) for _ in range(CASES)]
    for one, told in zip(cases, ask_vllm("naming.py", cases), strict=True):
        made = HashChain(one["size"], 0, one["adapter"], one["salt"], [MediaItem(*each) for each in one["media"]])
        ours = [made.extra(block) for block in range(one["blocks"])]
        assert json.loads(json.dumps(ours)) == told, one
