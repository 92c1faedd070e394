"""vLLM's names of KV blocks, made again from tokens: they fit only if algorithm and seed are the engine's.

Source: vLLM 0.32.0, ``vllm/utils/hashing.py`` and ``vllm/v1/core/kv_cache_utils.py``: a block's hash is that of
``(parent, tokens, extra keys)``, pickled or as canonical CBOR; the first block's parent is the hash of a seed:
``PYTHONHASHSEED`` where it is set, else a fixed word, or for xxhash random bytes. kvgate needs none of it (its own keys
are made from the tokens that events carry); that they can be made again shows that events and tokens are whole.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterable, Sequence

import xxhash

DEFAULT_SEED = "vllm-none-hash"

Value = None | int | str | bytes | tuple["Value", ...]


def _pickled(value: Value) -> bytes:
    return pickle.dumps(value, protocol=5)


def cbor(value: Value) -> bytes:
    """Canonical CBOR (RFC 8949, 4.2.1) of the few types that vLLM hashes; integers of 0 and above."""
    match value:
        case None:
            return b"\xf6"
        case int():
            return _head(0, value)
        case bytes():
            return _head(2, len(value)) + value
        case str():
            raw = value.encode()
            return _head(3, len(raw)) + raw
        case _:
            return _head(4, len(value)) + b"".join(map(cbor, value))


def _head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes([major << 5 | number])
    for code, width in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << 8 * width:
            return bytes([major << 5 | code]) + number.to_bytes(width, "big")
    raise ValueError(f"{number} does not fit into 64 bits")


ALGORITHMS: dict[str, Callable[[Value], bytes]] = {
    "sha256": lambda value: hashlib.sha256(_pickled(value)).digest(),
    "sha256_cbor": lambda value: hashlib.sha256(cbor(value)).digest(),
    "xxhash": lambda value: xxhash.xxh3_128_digest(_pickled(value)),
    "xxhash_cbor": lambda value: xxhash.xxh3_128_digest(cbor(value)),
}
"""``--prefix-caching-hash-algo`` -> its function."""


def none_hash(algorithm: str, seed: str = DEFAULT_SEED) -> bytes:
    """The parent of every first block."""
    return ALGORITHMS[algorithm](seed)


def block_hash(algorithm: str, parent: bytes, tokens: Sequence[int], extra: tuple[Value, ...] | None = None) -> bytes:
    return ALGORITHMS[algorithm]((parent, tuple(tokens), extra))


def recognise(
    first: int, tokens: Sequence[int], algorithms: Iterable[str], seeds: Iterable[str]
) -> tuple[str, str] | None:
    """(algorithm, seed) that make ``first``, the low 64 bits of the hash of a first block without extra keys."""
    tried = list(seeds)
    for algorithm in algorithms:
        for seed in tried:
            digest = block_hash(algorithm, none_hash(algorithm, seed), tokens)
            if int.from_bytes(digest[-8:], "big") == first:
                return algorithm, seed
    return None
