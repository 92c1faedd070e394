"""Block keys: our own chained hash of a block's tokens and everything before it.

Same tokens, same seed, same key, on every engine, whatever hash algorithm or seed the engines use. The chain is 64-bit
xxh3 with the previous key as its seed: 0.09 us a block, where vLLM's sha256 of a pickle takes 2. Two different contents
share a key once in 2**64 pairs; a clash costs a wrong expectation, never a wrong answer.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct

import msgspec
from xxhash import xxh3_64_intdigest

from gateway.core.prompt import BYTES_PER_ID, NOWHERE, MediaItem

CUT = 64
"""Blocks of a run that is split by a cached function, at most: that takes 32 bytes a block and 10 ns to make. Most runs
come from events or ``KeyCache``; prompts come in all lengths."""


class BlockKeys(msgspec.Struct, frozen=True, eq=False):
    """Keys of a prompt's whole blocks.

    ``values``: the keys, first to last, as ``array('Q')``. ``unit``: tokens a block. ``tokens``: of the prompt.
    ``exact``, ``whole``: as in ``Prompt``; if not ``whole``, no engine will report the last of them. ``differing``:
    names of endpoints whose engines make other tokens of the prompt.
    """

    values: array[int]
    unit: int
    tokens: int
    exact: bool
    whole: bool
    differing: frozenset[str] = NOWHERE


def root(exact: bool, adapter: str | None, salt: str | None) -> int:
    """The key before the first block: prompts with another adapter or salt, and estimated ones, never share a block."""
    return _root(exact, adapter, salt) if salt else _unsalted(exact, adapter)


@lru_cache(maxsize=256)
def _unsalted(exact: bool, adapter: str | None) -> int:
    """Cached, since adapters are few. Salts come from clients, as many and as long as they like, and are not."""
    return _root(exact, adapter, None)


def _root(exact: bool, adapter: str | None, salt: str | None) -> int:
    named = f"{int(exact)}\0{len(adapter or '')}\0{adapter or ''}\0{salt or ''}"
    return xxh3_64_intdigest(named.encode("utf-8", "surrogatepass"))


PLAIN_ROOTS = {exact: _root(exact, None, None) for exact in (False, True)}
"""By ``exact``: the ``root`` of prompts without adapter and salt, which are most."""


def chain(ids: array[int], unit: int, parent: int) -> list[int]:
    """Keys of the whole blocks of ``ids``, behind the block whose key is ``parent``. An incomplete last block has
    none."""
    count = len(ids) // unit
    if not count:
        return []
    width = unit * BYTES_PER_ID
    digest = xxh3_64_intdigest
    if count == 1:  # as of most events: decoding has filled one block
        return [digest(ids[:unit].tobytes(), parent)]
    cut = cutter(width, count) if count <= CUT else Struct(f"{width}s" * count).unpack
    keys = []
    for block in cut(memoryview(ids).cast("B")[: count * width]):
        parent = digest(block, parent)
        keys.append(parent)
    return keys


@lru_cache(maxsize=256)
def cutter(width: int, count: int) -> Callable[[memoryview], tuple[bytes, ...]]:
    """Splits ``count`` blocks of ``width`` bytes: quicker than a slice for each."""
    return Struct(f"{width}s" * count).unpack


def chain_with_media(
    ids: array[int],
    unit: int,
    parent: int,
    media: Sequence[MediaItem],
    step: Callable[[array[int], int, int], list[int]] = chain,
) -> list[int]:
    """As ``chain``, where ``media`` begin among ``ids``: in order, with offsets from the first id.

    A medium is in the key of the block in which it begins, with its offset there, and so in all keys behind. vLLM names
    it in every block that it covers, which identifies no more; but an event does not report where it ends, and so keys
    of another size than the engine's blocks could not be made that way. ``step``: computes what ``chain`` does.
    """
    if not media:
        return step(ids, unit, parent)
    keys: list[int] = []
    at = 0
    for offset, identifier in media:
        first = offset // unit * unit
        some = step(ids[at:first], unit, parent)
        keys += some
        named = f"{offset - first}\0{identifier}".encode("utf-8", "surrogatepass")
        parent = xxh3_64_intdigest(named, some[-1] if some else parent)
        at = first
    keys += step(ids[at:], unit, parent)
    return keys


def media_within(media: Sequence[MediaItem], start: int, end: int) -> tuple[MediaItem, ...]:
    """The media that begin at tokens ``start`` to ``end``, with offsets from ``start``."""
    return tuple(MediaItem(one.offset - start, one.identifier) for one in media if start <= one.offset < end)
