"""Block keys: our own chained hash of a block's tokens and everything before it.

Same tokens, same seed, same key, on every engine, whatever hash algorithm or seed the engines use. The chain is xxh3 64
bit with the previous key as its seed: 0.09 us a block, where vLLM's sha256 of a pickle takes 2. Two different
contents share a key once in 2**64 pairs; a clash costs a wrong expectation, never a wrong answer.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct

from xxhash import xxh3_64_intdigest

from gateway.framework import NOWHERE, Medium

BYTES_PER_ID = 4
"""Of a token id in an ``array('I')``."""

CUT = 64
"""Blocks of a run that is cut in a way made before, at most: what cuts them takes 32 bytes and, to make it, 10 ns each.
Most runs are events' or ``Chains``'; prompts come in all lengths."""


class BlockKeys(list[int]):
    """Keys of a prompt's whole blocks, first to last. ``unit``: tokens a block. ``tokens``: of the prompt.

    ``exact``, ``whole``: as the ``Prompt``'s: not ``whole``, the last of them no engine will ever tell.
    ``differing``: names of endpoints whose engines make other tokens of it.
    """

    __slots__ = ("differing", "exact", "tokens", "unit", "whole")

    def __init__(
        self,
        keys: list[int],
        unit: int,
        tokens: int,
        exact: bool,
        whole: bool,
        differing: frozenset[str] = NOWHERE,
    ) -> None:
        super().__init__(keys)
        self.unit = unit
        self.tokens = tokens
        self.exact = exact
        self.whole = whole
        self.differing = differing


def root(exact: bool, adapter: str | None, salt: str | None) -> int:
    """The key before the first block: what has another adapter or salt, or is an estimate, never shares a block."""
    return _root(exact, adapter, salt) if salt else _unsalted(exact, adapter)


@lru_cache(maxsize=256)
def _unsalted(exact: bool, adapter: str | None) -> int:
    """Adapters are few. Salts are clients', as many and as long as they like: none of those is remembered."""
    return _root(exact, adapter, None)


def _root(exact: bool, adapter: str | None, salt: str | None) -> int:
    named = f"{int(exact)}\0{len(adapter or '')}\0{adapter or ''}\0{salt or ''}"
    return xxh3_64_intdigest(named.encode("utf-8", "surrogatepass"))


def chain(ids: array[int], unit: int, parent: int) -> list[int]:
    """Keys of the whole blocks of ``ids``, behind the block whose key is ``parent``; a rest is dropped."""
    count = len(ids) // unit
    if not count:
        return []
    width = unit * BYTES_PER_ID
    digest = xxh3_64_intdigest
    if count == 1:  # most events: one block that decoding has filled
        return [digest(ids[:unit].tobytes(), parent)]
    cut = cutter(width, count) if count <= CUT else Struct(f"{width}s" * count).unpack
    return [parent := digest(block, parent) for block in cut(memoryview(ids).cast("B")[: count * width])]


@lru_cache(maxsize=256)
def cutter(width: int, count: int) -> Callable[[memoryview], tuple[bytes, ...]]:
    """Cuts ``count`` blocks of ``width`` bytes apart: quicker than a slice for each."""
    return Struct(f"{width}s" * count).unpack


def chain_past(
    ids: array[int],
    unit: int,
    parent: int,
    media: Sequence[Medium],
    step: Callable[[array[int], int, int], list[int]] = chain,
) -> list[int]:
    """As ``chain``, where ``media`` begin among ``ids``: in order, their places counted from the first of these.

    A medium is in the key of the block in which it begins, with its place there, and so in all keys behind. vLLM names
    it in every block that it has a part in, which tells no more; but where it ends an event does not say, and so keys
    of another size than the engine's blocks could not be made that way. ``step``: what ``chain`` does.
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
