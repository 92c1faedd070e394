"""Vectors: vLLM 0.32.0's own functions on tokens 100..131, and blocks that real engines announced."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.commands.doctor.hashes import ALGORITHMS, block_hash, cbor, none_hash, recognise

FIRST, SECOND = range(100, 116), range(116, 132)
VECTORS = {
    "sha256": (
        "066b1e8987e027138e98701c46128929378935f9b6cd1549105ae6b4f0d71198",
        "605fd9e311c0890137f4c7df65be59449fb378632eecf434d1ecdf87c874fd55",
        "f1a08810157991d5280c49952540afc2feab260cd65a24bb2e94951059393917",
    ),
    "sha256_cbor": (
        "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0",
        "c78a554a1b648c084577886fa29e20b89d606beb26cafd7f90ba7482f31901bc",
        "ce46e4cdf9f7c965a59bd3429627f27c1400980fc64be5e6706e1a9c55f39878",
    ),
}
WIRE = {"sha256": 15126711022707342677, "sha256_cbor": 10428775992902877628}


@pytest.mark.parametrize("algorithm", VECTORS)
def test_the_chain_is_vllm_s(algorithm: str) -> None:
    root = none_hash(algorithm)
    first = block_hash(algorithm, root, FIRST)
    assert (root.hex(), first.hex(), block_hash(algorithm, first, SECOND).hex()) == VECTORS[algorithm]


def test_a_salt_is_an_extra_key_of_the_first_block() -> None:
    salted = block_hash("sha256_cbor", none_hash("sha256_cbor"), FIRST, (("cache_salt", "abc"),))
    assert salted.hex() == "7dfc2c0d7201f3a244740322ca8bd8ea61499b18628563c096f5921eaba85898"


@pytest.mark.parametrize("algorithm", WIRE)
def test_a_hash_is_recognised_by_its_low_64_bits(algorithm: str) -> None:
    assert recognise(WIRE[algorithm], FIRST, ALGORITHMS, ["0", "vllm-none-hash"]) == (algorithm, "vllm-none-hash")
    assert recognise(WIRE[algorithm], FIRST, ALGORITHMS, ["0"]) is None
    assert recognise(WIRE[algorithm], SECOND, ALGORITHMS, ["vllm-none-hash"]) is None


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_seed_changes_every_hash(algorithm: str) -> None:
    wire = int.from_bytes(block_hash(algorithm, none_hash(algorithm, "7"), FIRST)[-8:], "big")
    assert recognise(wire, FIRST, [algorithm], ["0", "7"]) == (algorithm, "7")


@pytest.mark.parametrize(
    ("value", "hexadecimal"),
    [  # RFC 8949, appendix A
        (0, "00"), (23, "17"), (24, "1818"), (255, "18ff"), (256, "190100"), (1000000, "1a000f4240"),
        (1000000000000, "1b000000e8d4a51000"), (None, "f6"), (b"", "40"), (b"\x01\x02", "420102"), ("", "60"),
        ("\u00fc", "62c3bc"), ((), "80"), ((1, (2, 3)), "8201820203"),
    ],
)  # fmt: skip
def test_cbor_is_as_the_standard_has_it(value: int | str | bytes | tuple[int, ...] | None, hexadecimal: str) -> None:
    assert cbor(value).hex() == hexadecimal


def test_what_is_no_64_bit_number_is_refused() -> None:
    with pytest.raises(ValueError, match="64 bits"):
        cbor(1 << 64)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=64), st.lists(st.integers(0, 2**32 - 1), max_size=64))
def test_other_tokens_are_encoded_otherwise(one: list[int], other: list[int]) -> None:
    assert (cbor(tuple(one)) == cbor(tuple(other))) == (one == other)


def test_what_real_engines_announced() -> None:
    """One of PYTHONHASHSEED=0 and integer hashes, one of no seed, sha256_cbor and whole digests."""
    pattern = [303, 290, 291, 293, 294, 287, 269, 295, 292, 17]
    seeded = [1, 368, 202, 308, 353, 264, 369, 354, 17, *pattern, *pattern, *pattern[:3]]
    assert recognise(69893844733666884, seeded, ALGORITHMS, ["vllm-none-hash", "0"]) == ("sha256", "0")
    plain = [1, 336, 202, 270, *pattern[1:], *pattern, *pattern[:-1]]
    digest = bytes.fromhex("cfec6ece62910f412f02034931eea098bfdf9d8242cfd68d98382dd9fae98748")
    wire = int.from_bytes(digest[-8:], "big")
    assert recognise(wire, plain, ALGORITHMS, ["vllm-none-hash", "0"]) == ("sha256_cbor", "vllm-none-hash")
