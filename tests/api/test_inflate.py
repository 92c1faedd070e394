"""Bodies that come zipped: whole, in pieces, false, and far larger than they look."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import zlib
from collections.abc import Callable
from itertools import pairwise

import pytest
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway.api.encoding import MADE
from gateway.api.inflate import Inflating, inflating
from gateway.errors import BodyTooLarge, ClientError, UnsupportedMediaType
from gateway.proxy.http.receive import receive
from gateway.proxy.memory import Memory, Share


def bare(data: bytes) -> bytes:
    zipping = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return zipping.compress(data) + zipping.flush()


def members(data: bytes) -> bytes:
    """Gzip in three members, the second of them empty."""
    return gzip.compress(data[:7]) + gzip.compress(b"") + gzip.compress(data[7:])


Zip = Callable[[bytes], bytes]
FORMS: dict[str, tuple[str, Zip]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("x-gzip", gzip.compress),
    "stored": ("gzip", lambda data: gzip.compress(data, 0)),
    "members": ("gzip", members),
    "zlib": ("deflate", zlib.compress),
    "bare": ("deflate", bare),
}
EVERY = pytest.mark.parametrize("form", list(FORMS))


def unzipped(coding: str, *pieces: bytes) -> bytes:
    inflate = Inflating(coding)
    made = b"".join(part for piece in pieces for part in inflate.slices(piece))
    inflate.end()
    return made


@EVERY
@given(data=st.binary(max_size=2000), times=st.sampled_from([1, 1000]), cuts=st.lists(st.integers(0, 4000), max_size=5))
def test_what_was_zipped_comes_back_however_it_is_cut(form, data, times, cuts):
    coding, compress = FORMS[form]
    data *= times
    zipped = compress(data)
    places = [0, *sorted(cuts), len(zipped)]
    pieces = [zipped[a:b] for a, b in pairwise(places)]
    assert unzipped(coding, *pieces) == data


@pytest.mark.parametrize("size", [MADE - 1, MADE, MADE + 1, 2 * MADE, 2 * MADE + 259])
@EVERY
def test_a_body_that_ends_about_where_a_slice_does(form, size):
    coding, compress = FORMS[form]
    data = b"ab" * (size // 2) + b"c" * (size % 2)
    zipped = compress(data)
    assert unzipped(coding, zipped) == data
    assert unzipped(coding, *(zipped[place : place + 1000] for place in range(0, len(zipped), 1000))) == data


@EVERY
@given(data=st.binary(min_size=1, max_size=300), end=st.integers(1, 400))
def test_what_is_cut_short_is_a_400(form, data, end):
    coding, compress = FORMS[form]
    ends = {len(gzip.compress(data[:7])), len(gzip.compress(data[:7]) + gzip.compress(b""))}
    zipped = compress(data)
    if end >= len(zipped) or (form == "members" and end in ends):
        return
    with pytest.raises(ClientError, match="cut short") as raised:
        unzipped(coding, zipped[:end])
    assert raised.value.status == 400


@EVERY
@pytest.mark.parametrize("garbage", [b"x", b"{}\n", b"\0" * 8, b"\x1f\x8b\0" + b"\0" * 20, b"x" * 20_000])
def test_what_is_behind_its_end_is_a_400(form, garbage):
    coding, compress = FORMS[form]
    for pieces in ([compress(b"data") + garbage], [compress(b"data"), garbage]):
        with pytest.raises(ClientError) as raised:
            unzipped(coding, *pieces)
        assert raised.value.status == 400


@EVERY
@given(data=st.binary(min_size=30, max_size=300), place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_what_was_damaged_is_a_400_or_whole(form, data, place, bit):
    """Bare deflate has no sum, and in the heads of gzip and zlib not every bit says something."""
    coding, compress = FORMS[form]
    zipped = bytearray(compress(data))
    zipped[place % len(zipped)] ^= 1 << bit
    made = data
    with contextlib.suppress(ClientError):
        made = unzipped(coding, bytes(zipped))
    assert form == "bare" or made == data


@given(data=st.binary(max_size=500), coding=st.sampled_from(["gzip", "deflate"]))
def test_what_never_was_zipped_is_a_400_at_worst(data, coding):
    with contextlib.suppress(ClientError):
        unzipped(coding, data)


def test_nothing_is_nothing():
    assert unzipped("gzip") == unzipped("deflate") == b""


@pytest.mark.parametrize("values", [(), ("",), ("identity",), ("Identity, ",), ("identity", "identity")])
def test_a_body_that_is_as_it_is(values):
    assert inflating(values) is None


@pytest.mark.parametrize("values", [("GZIP",), (" x-gzip ",), ("deflate",), ("identity, gzip",), ("identity", "gzip")])
def test_a_body_that_is_zipped(values):
    assert inflating(values) is not None


@pytest.mark.parametrize(
    "values", [("br",), ("zstd",), ("gzip, gzip",), ("gzip", "deflate"), ("gzip;q=1",), ("x" * 999,)]
)
def test_other_codings_are_a_415_that_says_what_would_do(values):
    with pytest.raises(UnsupportedMediaType, match="gzip or deflate, or as it is") as raised:
        inflating(values)
    assert raised.value.param == "content-encoding"
    assert len(raised.value.message) < 300


async def received(zipped: bytes, limit: int) -> tuple[bytes, int]:
    """The body, and the turns that another task had meanwhile."""
    loop = asyncio.get_running_loop()
    content = StreamReader(BaseProtocol(loop), 2**30, loop=loop)
    content.feed_data(zipped)
    content.feed_eof()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = loop.create_task(count())
    try:
        headers = CIMultiDict({"Content-Encoding": "gzip"})
        return await receive(headers, content, limit=limit, timeout=60, share=Share(Memory(2**40))), turns
    finally:
        counting.cancel()


async def test_others_have_their_turns_while_a_body_is_unzipped():
    size = 32 * MADE
    body, turns = await received(gzip.compress(bytes(size)), size)
    assert body == bytes(size)
    assert turns >= 32
    body, turns = await received(gzip.compress(b"") * 10_000, size)
    assert body == b""
    assert turns >= 20


async def test_no_more_of_a_bomb_is_unzipped_than_shows_that_it_is_one():
    made = []

    def slices(self: Inflating, data: bytes):
        for part in genuine(self, data):
            made.append(len(part))
            yield part

    genuine = Inflating.slices
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Inflating, "slices", slices)
        with pytest.raises(BodyTooLarge):
            await received(gzip.compress(bytes(200 * MADE)), MADE)
    assert sum(made) <= 3 * MADE


async def test_a_body_that_is_longer_zipped_than_the_limit_is_refused_whatever_it_unzips_to():
    with pytest.raises(BodyTooLarge):
        await received(gzip.compress(b"") * 10_000, 1000)
