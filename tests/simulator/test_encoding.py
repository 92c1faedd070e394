"""Events have the keys, order and types of captured ones, in both encodings and with both kinds of hashes."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest

from simulator.blocks import Cleared, KvEvent, Removed, Stored
from simulator.encoding import encode_batch

DATA = Path(__file__).parents[1] / "data" / "simulator"

EVENTS: list[KvEvent] = [
    Cleared(),
    Stored((b"a" * 32, b"\xff" * 32), None, array("I", range(8)), 4, None, (("salty",), None)),
    Stored((b"c" * 32,), b"\xff" * 32, array("I", range(4)), 4, "lora", (("lora",),)),
    Removed(b"a" * 32),
]


def captured(name: str) -> list[Any]:
    return [json.loads(line)["payload"] for line in (DATA / name).read_text().splitlines()]


def decode(*, positional: bool = False, raw: bool = False) -> Any:
    return msgspec.msgpack.decode(encode_batch(1.5, EVENTS, 3, positional=positional, raw_hashes=raw))


def shape(event: dict[str, Any]) -> dict[str, Any]:
    """Keys in order with their types; a list's is that of its first element."""
    kinds: dict[str, Any] = {}
    for key, value in event.items():
        kinds[key] = [type(value[0]).__name__] if isinstance(value, list) else type(value).__name__
    return kinds


def test_a_batch_is_time_events_rank() -> None:
    at, events, rank = decode()
    assert (at, len(events), rank) == (1.5, 4, 3)
    assert [type(part) for part in captured("a_sha256.jsonl")[0]] == [float, list, int]


def test_maps_have_the_captured_shape() -> None:
    real = [event for batch in captured("a_sha256.jsonl") for event in batch[1]]
    first = next(event for event in real if event["type"] == "BlockStored" and event["parent_block_hash"] is None)
    later = next(event for event in real if event["type"] == "BlockStored" and event["parent_block_hash"] is not None)
    salted = next(event for event in real if event["type"] == "BlockStored" and event["extra_keys"][0])
    ours = decode()[1]
    assert shape(ours[2]) == shape(later) | {"lora_name": "str", "extra_keys": ["list"]}
    assert shape(ours[1]) == shape(first) | {"extra_keys": ["list"]} == shape(salted)
    assert ours[0] == {"type": "AllBlocksCleared"}
    assert ours[1]["extra_keys"] == [["salty"], None]
    assert ours[3] == {"type": "BlockRemoved", "block_hashes": [int.from_bytes(b"a" * 8)], "medium": "GPU"} | {
        "group_idx": 0
    }


def test_integer_hashes_are_unsigned_and_64_bits() -> None:
    assert decode()[1][1]["block_hashes"][1] == 2**64 - 1


def test_raw_hashes_are_32_bytes() -> None:
    events = decode(raw=True)[1]
    assert events[1]["block_hashes"] == [b"a" * 32, b"\xff" * 32]
    assert events[2]["parent_block_hash"] == b"\xff" * 32
    real = captured("u_bytes_noseed.jsonl")[0][1][0]["block_hashes"][0]["__bytes_hex__"]
    assert len(bytes.fromhex(real)) == 32


@pytest.mark.parametrize("raw", [True, False])
def test_arrays_hold_the_same_values_in_the_old_order(raw: bool) -> None:
    maps, arrays = decode(raw=raw)[1], decode(positional=True, raw=raw)[1]
    assert arrays[0] == ["AllBlocksCleared"]
    assert [list(event.values()) for event in maps[1:]] == arrays[1:]
    assert arrays[3][0] == "BlockRemoved"
    assert arrays[1][:3] == ["BlockStored", maps[1]["block_hashes"], None]
