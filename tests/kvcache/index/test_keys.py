from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from gateway.core.clock import ManualClock
from gateway.core.observer import NULL_OBSERVER
from gateway.core.prompt import MediaItem, Prompt
from gateway.kvcache.index.cache_index import CacheIndex
from gateway.kvcache.index.keys import chain, chain_with_media, root
from gateway.kvcache.settings import CacheSettings

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
    index = CacheIndex(CacheSettings(block_size=16), "m", ManualClock(), NULL_OBSERVER)
    keys = index.keys(Prompt(array("I", range(40)), 40, False, "route"))
    assert (keys.unit, keys.tokens, keys.exact, keys.whole) == (16, 40, False, False)
    assert list(keys.values) == chain(array("I", range(32)), 16, root(False, None, None))
    keys = index.keys(Prompt(array("I", range(40)), 50, True, differing=frozenset("b")))
    assert (keys.unit, keys.tokens, keys.exact, keys.whole) == (16, 50, True, True)
    assert keys.differing == {"b"}


def test_a_medium_is_in_all_keys_from_its_block_on():
    ids = array("I", range(40))
    plain = chain(ids, 4, 7)
    one = chain_with_media(ids, 4, 7, [MediaItem(9, "a")])
    assert one[:2] == plain[:2]
    assert set(one[2:]).isdisjoint(plain)
    others = [
        chain_with_media(ids, 4, 7, media) for media in ([MediaItem(9, "b")], [MediaItem(8, "a")], [MediaItem(13, "a")])
    ]
    assert len({each[-1] for each in (plain, one, *others)}) == 5
    assert others[2][:3] == plain[:3]


media = st.lists(st.tuples(st.integers(0, 39), st.sampled_from("ab")), max_size=4, unique_by=lambda one: one[0])


@given(tokens, st.integers(1, 9), media, st.integers(0, 9))
def test_a_chain_past_media_can_be_made_in_parts(ids, unit, told, blocks):
    told = [MediaItem(*one) for one in sorted(told) if one[0] < len(ids)]
    cut = blocks * unit
    whole = chain_with_media(array("I", ids), unit, 7, told)
    first = chain_with_media(array("I", ids[:cut]), unit, 7, [one for one in told if one.offset < min(cut, len(ids))])
    behind = [MediaItem(offset - cut, name) for offset, name in told if offset >= cut]
    rest = chain_with_media(array("I", ids[cut:]), unit, first[-1] if first else 7, behind)
    assert first + rest == whole
    assert len(whole) == len(ids) // unit


@given(tokens, st.integers(1, 9), media, media)
def test_keys_are_equal_up_to_the_first_difference(ids, unit, one, other):
    one, other = ([MediaItem(*each) for each in sorted(some) if each[0] < len(ids)] for some in (one, other))
    apart = min((offset for offset, _ in set(one) ^ set(other)), default=len(ids) // unit * unit)
    left, right = (chain_with_media(array("I", ids), unit, 7, some) for some in (one, other))
    assert [a == b for a, b in zip(left, right, strict=True)] == [
        number < apart // unit for number in range(len(ids) // unit)
    ]
