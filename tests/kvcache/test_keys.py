from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from gateway.kvcache.keys import BlockKeys, chain, root

tokens = st.lists(st.integers(0, 2**32 - 1), max_size=40)


@given(tokens, st.integers(1, 9), st.integers(0, 2**64 - 1))
def test_each_key_is_the_hash_of_its_tokens_seeded_by_the_key_before(ids, unit, parent):
    expected = []
    for start in range(0, len(ids) - unit + 1, unit):
        parent_of_next = xxh3_64_intdigest(
            array("I", ids[start : start + unit]).tobytes(), expected[-1] if expected else parent
        )
        expected.append(parent_of_next)
    assert chain(array("I", ids), unit, parent) == expected


@given(tokens, st.integers(1, 9), st.integers(0, 9))
def test_a_chain_can_be_made_in_parts(ids, unit, blocks):
    whole = chain(array("I", ids), unit, 7)
    first = chain(array("I", ids[: blocks * unit]), unit, 7)
    rest = chain(array("I", ids[blocks * unit :]), unit, first[-1] if first else 7)
    assert first + rest == whole


def test_nothing_is_shared_between_adapters_salts_and_estimates():
    roots = [
        root(exact, adapter, salt)
        for exact in (True, False)
        for adapter in (None, "a", "ab")
        for salt in (None, "b", "")
    ]
    # An empty salt is none; everything else is told apart, also where the names together are the same.
    assert len(set(roots)) == 2 * 3 * 2
    assert root(True, "a", "b") != root(True, "ab", None)
    assert root(True, None, "\ud800")  # a client may send half a surrogate pair


def test_keys_know_what_they_are_of():
    keys = BlockKeys([1, 2], unit=16, tokens=40, exact=False)
    assert (list(keys), keys.unit, keys.tokens, keys.exact) == ([1, 2], 16, 40, False)
