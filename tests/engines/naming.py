"""What vLLM puts into the names of blocks with media, and into its events of them. Runs under the engine venv's Python.

Reads a list of cases from stdin: ``size``, ``blocks``, ``media`` ([offset, length, identifier] each), ``salt``,
``adapter``. Writes for each the extra keys of its blocks as an event has them; events that begin at a later block make
them anew, and must agree.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

from vllm.multimodal.inputs import PlaceholderRange
from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, to_event_extra_keys


def told(case: dict[str, Any], first: int) -> Any:
    """Of the blocks from number ``first`` on, in one event."""
    request: Any = SimpleNamespace(
        mm_features=[
            SimpleNamespace(identifier=identifier, mm_position=PlaceholderRange(offset=offset, length=length))
            for offset, length, identifier in case["media"]
        ],
        lora_request=case["adapter"] and SimpleNamespace(lora_name=case["adapter"], lora_path="/adapter"),
        cache_salt=case["salt"],
        prompt_embeds=None,
    )
    keys, at = [], 0
    for start in range(first * case["size"], case["blocks"] * case["size"], case["size"]):
        extra, at = generate_block_hash_extra_keys(request, start, start + case["size"], at)
        keys.append(extra)
    return to_event_extra_keys(keys)


if __name__ == "__main__":
    answers = []
    for one in json.load(sys.stdin):
        whole = told(one, 0)
        for number in range(1, one["blocks"]):
            assert told(one, number) == whole[number:], one
        answers.append(whole)
    json.dump(answers, sys.stdout)
