"""Computes vLLM's hashes of KV blocks from tokens. They equal the engine's only with the same algorithm and seed.

Source: vLLM 0.32.0, ``vllm/utils/hashing.py`` and ``vllm/v1/core/kv_cache_utils.py``. A block's hash is that of
``(parent, tokens, extra keys)``, pickled or as canonical CBOR. The first block's parent is the hash of a seed:
``PYTHONHASHSEED`` if it is set, else a fixed word, or random bytes for xxhash. The gateway does not need these hashes
(it makes its keys from the tokens in the events); that they can be recomputed shows that events and tokens are
complete.
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
    """Canonical CBOR (RFC 8949, 4.2.1) of the few types that vLLM hashes. Integers are not negative."""
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
"""The hash functions by ``--prefix-caching-hash-algo``."""


def none_hash(algorithm: str, seed: str = DEFAULT_SEED) -> bytes:
    """The parent hash of every first block."""
    return ALGORITHMS[algorithm](seed)


def block_hash(algorithm: str, parent: bytes, tokens: Sequence[int], extra: tuple[Value, ...] | None = None) -> bytes:
    return ALGORITHMS[algorithm]((parent, tuple(tokens), extra))


def recognise(
    first: int, tokens: Sequence[int], algorithms: Iterable[str], seeds: Iterable[str]
) -> tuple[str, str] | None:
    """The algorithm and the seed that give ``first``, the low 64 bits of the hash of a first block without extra
    keys."""
    tried = list(seeds)
    for algorithm in algorithms:
        for seed in tried:
            digest = block_hash(algorithm, none_hash(algorithm, seed), tokens)
            if int.from_bytes(digest[-8:], "big") == first:
                return algorithm, seed
    return None
