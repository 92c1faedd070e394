from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.kvcache.events.decode import MAX_MESSAGE, decode
from gateway.kvcache.index.block_events import AllBlocksCleared, BlockRemoved, BlockStored, short
from tests.kvcache.conftest import END, captured, payload, removed, stored

hashes = st.one_of(st.integers(-(2**63), 2**64 - 1), st.binary(min_size=8, max_size=32))
maybe_text = st.none() | st.text(max_size=5)
stores = st.builds(
    BlockStored,
    block_hashes=st.lists(hashes, max_size=3),
    parent_block_hash=st.none() | hashes,
    token_ids=st.lists(st.integers(0, 2**32 - 1), max_size=8),
    block_size=st.integers(0, 64),
    lora_id=st.none() | st.integers(0, 9),
    medium=st.sampled_from([None, "GPU", "CPU", "STORAGE", "cpu"]),
    lora_name=maybe_text,
    extra_keys=st.none()
    | st.lists(st.none() | st.lists(st.text(max_size=3) | st.binary(max_size=3), max_size=2), max_size=3),
    group_idx=st.none() | st.integers(0, 3),
    kv_cache_spec_kind=st.none() | st.just("full_attention"),
)
removals = st.builds(
    BlockRemoved, block_hashes=st.lists(hashes, max_size=3), medium=maybe_text, group_idx=st.none() | st.integers(0, 3)
)
events = st.lists(stores | removals | st.builds(AllBlocksCleared), max_size=4)


def as_map(event: Any) -> Any:
    return msgspec.to_builtins(event, builtin_types=(bytes,))


def as_row(event: Any) -> Any:
    """Positional, trailing defaults left out."""
    values = [getattr(event, name) for name in event.__struct_fields__]
    while values and values[-1] is None:
        values.pop()
    return [type(event).__name__, *values]


@given(events, st.booleans(), st.booleans(), st.none() | st.integers(0, 7))
def test_every_encoding_is_read_alike(said, positional, batch_is_map, rank):
    encoded = [as_row(event) if positional else as_map(event) for event in said]
    whole = [1.5, encoded, rank]
    message = dict(zip(("ts", "events", "data_parallel_rank"), whole, strict=True)) if batch_is_map else whole
    batch = decode(msgspec.msgpack.encode(message))
    assert [as_map(event) for event in batch.events] == [as_map(event) for event in said]
    assert (batch.rank, +batch.refused) == (rank, {})


@given(st.binary(max_size=200))
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\x93\xcb" + b"\0" * 8 + b"\xdd\xff\xff\xff\xff")
@example(b"\x91" * 5000)
@example(b"\x93\x01\x91" + b"\x91" * 5000)
def test_garbage_is_refused_and_nothing_more(message):
    batch = decode(message)
    assert batch.events == []
    assert sum(batch.refused.values()) >= 0


@given(events, st.integers(0, 10**6), st.integers(0, 255))
def test_a_message_with_a_wrong_byte_is_survived(said, at, byte):
    message = bytearray(msgspec.msgpack.encode([1.0, [as_map(event) for event in said], 0]))
    message[at % len(message)] = byte
    decode(bytes(message))


@pytest.mark.parametrize(
    ("odd", "word"),
    [
        ({"type": "BlockMoved", "block_hashes": [1]}, "unknown-type"),
        (["BlockMoved", [1]], "unknown-type"),
        ({"type": "BlockStored", "block_hashes": "none"}, "malformed"),
        ({"type": "BlockRemoved"}, "malformed"),
        (["BlockRemoved", 5], "malformed"),
        ({"type": 3}, "malformed"),
        ([], "malformed"),
        (7, "malformed"),
        ({"type": "BlockRemoved", "block_hashes": [2**64 - 1], "medium": b"\xff"}, "malformed"),
    ],
)
def test_one_bad_event_never_spoils_its_batch(odd, word):
    good = as_map(removed(1))
    batch = decode(msgspec.msgpack.encode([1.0, [good, odd, good], 0]))
    assert [event.block_hashes for event in batch.events] == [[1], [1]]
    assert batch.refused == {word: 1}


def test_a_key_that_we_do_not_know_is_counted_and_read_over():
    batch = decode(msgspec.msgpack.encode([1.0, [{**as_map(stored([1], [5] * 16)), "colour": "red"}], 0]))
    assert batch.events == [stored([1], [5] * 16)]
    assert batch.refused == {"unknown-key": 1}


def test_keys_of_vllm_that_we_do_not_need_are_not_counted():
    others = {"locality": "LOCAL", "ownership": None, "session_id": "s", "kv_cache_spec_sliding_window": 4096}
    batch = decode(msgspec.msgpack.encode([1.0, [{**as_map(stored([1], [5] * 16)), **others}], 0]))
    assert (len(batch.events), batch.refused.total()) == (1, 0)


def test_newer_positions_are_counted_and_read_over():
    row = ["BlockRemoved", [1], "GPU", 0, "LOCAL", "tier-2", "later"]
    batch = decode(msgspec.msgpack.encode([1.0, [row]]))
    assert batch.events == [removed(1, locality="LOCAL", ownership="tier-2")]
    assert batch.refused == {"unknown-key": 1}


@pytest.mark.parametrize(
    ("told", "number"),
    [(2**64 - 1, 2**64 - 1), (-1, 2**64 - 1), (b"\0" * 24 + b"\x01" + b"\0" * 7, 2**56), (b"\x05", 5), (b"", 0)],
)
def test_a_hash_is_its_low_64_bits(told, number):
    assert short(told) == number


@pytest.mark.parametrize("name", ["a_sha256", "a_replay_from0", "u_bytes_noseed", "pd_prefill", "pd_decode"])
def test_what_vllm_sends_is_understood(name):
    batches = [decode(frames[-1]) for frames in captured(f"{name}.bin") if frames[-2] != END]
    assert not any(batch.refused.total() for batch in batches)
    assert {type(event) for batch in batches for event in batch.events} <= {BlockStored, AllBlocksCleared}
    assert {batch.rank for batch in batches} == {0}


def test_the_tests_encode_as_vllm_does():
    assert decode(payload(removed(3))).events == [removed(3)]


def test_a_message_that_is_too_long_is_not_read() -> None:
    most = MAX_MESSAGE // 9  # bytes of such a hash
    assert len(decode(payload(removed(*range(1 << 62, (1 << 62) + most - 100)))).events) == 1
    batch = decode(payload(removed(*range(1 << 62, (1 << 62) + most))))
    assert (batch.events, batch.refused) == ([], {"malformed-batch": 1})
