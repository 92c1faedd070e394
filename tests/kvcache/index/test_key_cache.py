from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import ManualClock
from gateway.core.observer import NULL_OBSERVER
from gateway.core.prompt import KEYS_KEPT, KnownPrefix, PrefixedIds, Prompt
from gateway.kvcache.index.cache_index import CacheIndex
from gateway.kvcache.index.key_cache import RUN, KeyCache
from gateway.kvcache.index.keys import chain, root
from gateway.kvcache.settings import CacheSettings

UNITS = [1, 4, 16, 48, 64, 100, RUN - 1, RUN, RUN + 1, 3 * RUN]


def prompt(*numbers: int, size: int = RUN // 4) -> array[int]:
    """A quarter of a run for each number."""
    return array("I", [number * 7919 + column for number in numbers for column in range(size)])


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 3), max_size=18), st.integers(0, 20), st.integers(0, 1), st.sampled_from(UNITS)
        ),
        max_size=12,
    ),
    st.integers(1, 6),
)
def test_the_keys_are_those_of_the_whole_chain(prompts: list[tuple[list[int], int, int, int]], limit: int) -> None:
    key_cache = KeyCache(limit)
    for numbers, rest, parent, unit in prompts:
        ids = prompt(*numbers) + array("I", range(rest))
        assert key_cache.keys(ids, unit, parent) == chain(ids, unit, parent)
        assert len(key_cache) <= limit


def test_a_known_prefix_is_not_hashed_again() -> None:
    key_cache = KeyCache()
    first = key_cache.keys(prompt(*range(8)), 16, 5)
    again = key_cache.keys(prompt(*range(9)), 16, 5)
    assert len(key_cache) == 2
    assert all(one is other for one, other in zip(first, again, strict=False)), "the very same objects"
    key_cache.keys(prompt(*range(8)), 16, 6)
    assert len(key_cache) == 4, "behind another key they are others"


@given(
    st.lists(
        st.tuples(
            st.sampled_from([(None, None), ("a", None), (None, "s"), ("a", "s"), ("b", None)]),
            st.integers(0, 3 * RUN),
            st.sampled_from([4, 16, 48, 64, RUN, 3 * RUN]),
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 3 * RUN),
)
def test_what_is_known_of_a_prefix_changes_no_key(
    prompts: list[tuple[tuple[str | None, str | None], int, int]], count: int
) -> None:
    """Of prompts with one beginning, whatever follows it, for each adapter, salt and block size."""
    prefix, known = array("I", range(count)), KnownPrefix(count)
    for number, ((adapter, salt), rest, unit) in enumerate(prompts):
        index = CacheIndex(CacheSettings(block_size=unit), "m", ManualClock(), NULL_OBSERVER)
        ids = prefix + array("I", range(number, number + rest))
        pieces = [ids[: count // 3].tobytes(), ids[count // 3 : count].tobytes()]
        prefixed = PrefixedIds(known, pieces, ids[count:])
        keys = index.keys(Prompt(prefixed, len(ids), True), adapter, salt)
        plain = index.keys(Prompt(ids, len(ids), True), adapter, salt)
        assert list(keys.values) == list(plain.values) == chain(ids, unit, root(True, adapter, salt))
        assert (keys.unit, keys.tokens, keys.exact, keys.whole) == (unit, len(ids), True, True)
        assert len(known.keys) <= KEYS_KEPT
        assert prefixed.whole is None, "nothing has read the ids"


def test_the_least_recently_used_is_forgotten() -> None:
    key_cache = KeyCache(2)
    for number in (1, 2, 1, 3):
        key_cache.keys(prompt(*[number] * 4), 16, 5)
    kept = [keys[0] for keys in key_cache._runs.values()]
    assert kept == [chain(prompt(number), 16, 5)[0] for number in (1, 3)]


def test_another_unit_has_other_keys() -> None:
    key_cache = KeyCache()
    key_cache.keys(prompt(1, 2, 3, 4), 16, 5)
    assert key_cache.keys(prompt(1, 2, 3, 4), 32, 5) == chain(prompt(1, 2, 3, 4), 32, 5)
    assert len(key_cache) == 1
