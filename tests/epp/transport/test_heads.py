"""Headers, packed by an encoder that is not ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from hpack import Encoder
from hpack.struct import NeverIndexedHeaderTuple
from hypothesis import given
from hypothesis import strategies as st

from gateway.epp.transport.frames import ConnectionFault
from gateway.epp.transport.heads import MAX_KNOWN, HeadDecoder, leaves_table, literal

NAMES = st.sampled_from([":path", ":method", "a", "x-long-name-" * 15, "te", "content-type"])
VALUES = st.sampled_from(["", "b", "POST", "trailers", "v" * 126, "v" * 127, "v" * 300])
HEADERS = st.lists(st.tuples(NAMES, VALUES, st.booleans()), max_size=6)


def packed(encoder: Encoder, headers: list[tuple[str, str, bool]], huffman: bool) -> bytes:
    made: bytes = encoder.encode(
        [NeverIndexedHeaderTuple(name, value) if never else (name, value) for name, value, never in headers], huffman
    )
    return made


@given(st.lists(HEADERS, min_size=1, max_size=4), st.lists(st.integers(0, 3), max_size=12), st.booleans())
def test_what_is_remembered_makes_no_difference(
    kinds: list[list[tuple[str, str, bool]]], order: list[int], huffman: bool
) -> None:
    encoder, decoder = Encoder(), HeadDecoder(100_000)
    for number in order:
        headers = kinds[number % len(kinds)]
        found = decoder.decode(packed(encoder, headers, huffman))
        if found is not None:
            assert found == {name.encode(): value.encode() for name, value, _ in headers}


@given(HEADERS, st.booleans())
def test_a_block_that_leaves_the_table_leaves_it(headers: list[tuple[str, str, bool]], huffman: bool) -> None:
    encoder, decoder = Encoder(), HeadDecoder(100_000)
    for _ in range(3):
        block = packed(encoder, headers, huffman)
        before = list(decoder._decoder.header_table.dynamic_entries)
        decoder._known.clear()
        decoder.decode(block)
        if leaves_table(block):
            assert list(decoder._decoder.header_table.dynamic_entries) == before
        else:
            assert not decoder._known


@pytest.mark.parametrize(
    ("block", "leaves"),
    [
        (b"", True),
        (b"\x83\x86\xbe", True),
        (b"\xff\x00", False),  # a long number
        (b"\x04\x01/", True),
        (b"\x14\x01/", True),  # never to be remembered by anyone
        (b"\x0f\x00\x01/", False),
        (b"\x00\x01a\x01b\x83", True),
        (b"\x00\x01a\x7f", False),
        (b"\x00\x01a", False),
        (b"\x44\x01/", False),
        (b"\x40\x01a\x01b", False),
        (b"\x20", False),
        (b"\x3f\xe1\x1f", False),
    ],
)
def test_which_blocks_leave_the_table(block: bytes, leaves: bool) -> None:
    assert leaves_table(block) == leaves


def test_envoys_blocks_are_remembered_from_the_second_on() -> None:
    """Of a real one: the path comes as text each time, all else from the table."""
    raw = (Path(__file__).parents[2] / "data" / "epp" / "envoy-ends.bin").read_bytes()[24:]
    decoder, at, remembered = HeadDecoder(32_768), 0, []
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 3])
        if raw[at + 3] == 1:
            block = raw[at + 9 : at + 9 + size]
            remembered.append(block in decoder._known)
            found = decoder.decode(block)
            assert found is not None
            assert found[b":path"] == b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"
        at += 9 + size
    assert remembered == [False, False, True]


def test_few_blocks_are_remembered() -> None:
    decoder = HeadDecoder(32_768)
    for number in range(1000):
        decoder.decode(literal(b"a", b"%d" % number))
        assert len(decoder._known) <= MAX_KNOWN


def test_what_is_no_hpack_is_not_remembered() -> None:
    decoder = HeadDecoder(100)
    for block in (b"\xfe", b"\x00\x01a\x60" + b"b" * 0x60):
        for _ in range(2):
            with pytest.raises(ConnectionFault):
                decoder.decode(block)
