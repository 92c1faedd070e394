from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.encoding import Inflater, Undecodable, acceptable, decoded, encoding_of


@pytest.mark.parametrize(
    ("sent", "asked"),
    [
        ([], ""),
        (["gzip, deflate, br, zstd"], "gzip, deflate"),
        (["br", "GZIP;q=0.5"], "GZIP;q=0.5"),
        (["gzip;q=0, deflate ; q=0.000"], ""),
        (["*"], ""),
        (["identity"], ""),
    ],
)
def test_a_client_gets_only_what_can_be_read_along(sent: list[str], asked: str) -> None:
    assert acceptable(sent) == asked


def test_an_identity_is_no_encoding() -> None:
    assert encoding_of([("Content-Encoding", "Identity")]) == ""
    assert encoding_of([("content-type", "text/plain")]) == ""
    assert encoding_of([("CONTENT-ENCODING", "GZip")]) == "gzip"


def decoder(coding: str) -> Callable[[bytes], bytes]:
    """Reads a body's parts in turn."""
    inflater = Inflater(coding)
    return lambda data: b"".join(inflater.slices(data))


PACK = {"gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress}


@given(
    data=st.binary(max_size=2000), coding=st.sampled_from(sorted(PACK)), cuts=st.lists(st.integers(0, 2100), max_size=9)
)
def test_any_cut_of_a_stream_reads_the_same(data: bytes, coding: str, cuts: list[int]) -> None:
    packed = PACK[coding](data)
    decode, read, start = decoder(coding), b"", 0
    for cut in [*sorted(min(cut, len(packed)) for cut in cuts), len(packed)]:
        read += decode(packed[start:cut])
        start = cut
    assert read == data == decoded(packed, coding, 10_000)


@given(
    members=st.lists(st.tuples(st.binary(max_size=300), st.integers(0, 20)), min_size=1, max_size=6),
    cuts=st.lists(st.integers(0, 2500), max_size=9),
)
def test_gzip_of_several_members_reads_as_one(members: list[tuple[bytes, int]], cuts: list[int]) -> None:
    """RFC 1952, section 2.2; with zeros behind any of them, as gzip reads it."""
    packed = b"".join(gzip.compress(data) + bytes(zeros) for data, zeros in members)
    decode, read, start = decoder("gzip"), b"", 0
    for cut in [*sorted(min(cut, len(packed)) for cut in cuts), len(packed)]:
        read += decode(packed[start:cut])
        start = cut
    assert read == b"".join(data for data, _ in members) == decoded(packed, "gzip", 10_000)


@pytest.mark.parametrize("coding", sorted(PACK))
def test_what_follows_the_end_and_is_no_member_cannot_be_read(coding: str) -> None:
    packed = PACK[coding](b"data")
    decode = decoder(coding)
    assert decode(packed) == b"data"
    assert decode(bytes(10)) == b""
    with pytest.raises(Undecodable):
        decode(bytes(10) + b"more of it")
    with pytest.raises(Undecodable):
        decoded(packed + b"more of it", coding, 10_000)


def test_a_limit_holds_for_all_members_together_and_for_what_is_packed() -> None:
    member = gzip.compress(bytes(600))
    assert decoded(member * 3, "gzip", 1000) == bytes(1000)
    empty = gzip.compress(b"")
    assert decoded(empty * 100 + gzip.compress(b"x"), "gzip", 1000) == b""
    assert decoded(empty * 10 + gzip.compress(b"x"), "gzip", 1000) == b"x"


def test_what_was_flushed_is_read_at_once() -> None:
    squeeze = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    decode = decoder("gzip")
    for event in (b"data: 1\n\n", b"data: 2\n\n"):
        assert decode(squeeze.compress(event) + squeeze.flush(zlib.Z_SYNC_FLUSH)) == event


def test_a_whole_body_is_read_up_to_a_limit() -> None:
    assert decoded(gzip.compress(bytes(10_000_000)), "gzip", 1000) == bytes(1000)
    assert decoded(b"as it is", "", 2) == b"as it is"


@pytest.mark.parametrize("coding", ["br", "gzip, gzip", "x" * 1000])
def test_what_was_not_asked_for_cannot_be_read(coding: str) -> None:
    with pytest.raises(Undecodable, match="not asked for"):
        decoder(coding)
    with pytest.raises(Undecodable, match="not asked for"):
        decoded(b"", coding, 10)


def test_garbage_is_no_gzip() -> None:
    with pytest.raises(Undecodable, match="gzip, and it is not"):
        decoder("gzip")(b"{}{}{}{}")
    with pytest.raises(Undecodable, match="gzip, and it is not"):
        decoded(b"{}{}{}{}", "gzip", 10)
