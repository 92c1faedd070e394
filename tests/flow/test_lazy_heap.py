from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.flow.lazy_heap import SMALL, LazyHeap

STEPS = st.lists(
    st.tuples(st.sampled_from(["set", "discard", "pop"]), st.integers(0, 20), st.integers(0, 5)), max_size=300
)


@given(STEPS)
def test_it_is_a_sorted_list_whatever_is_done(steps) -> None:
    heap: LazyHeap[int] = LazyHeap()
    there: dict[int, tuple[int, int]] = {}  # key, and when it was set
    for number, (step, item, key) in enumerate(steps):
        order = sorted(there, key=lambda one: there[one])
        match step:
            case "set":
                heap.set(item, key)
                there[item] = key, number
            case "discard":
                assert heap.discard(item) == (there.pop(item, None) is not None)
            case "pop":
                assert heap.pop() == (order[0] if order else None)
                there.pop(order[0] if order else -1, None)
        order = sorted(there, key=lambda one: there[one])
        assert heap.first() == (order[0] if order else None)
        assert len(heap) == len(there)
        assert (item in heap) == (item in there)
        assert heap.entries <= 2 * len(heap) + SMALL


def test_the_second_number_decides_among_equals() -> None:
    heap: LazyHeap[str] = LazyHeap()
    heap.set("a", 1.0, 2.0)
    heap.set("b", 1.0, 1.0)
    assert heap.top() == ("b", 1.0)


def test_an_empty_heap_has_no_top() -> None:
    heap: LazyHeap[str] = LazyHeap()
    heap.set("a", 1.0)
    heap.discard("a")
    assert heap.first() is None
    with pytest.raises(IndexError, match="empty"):
        heap.top()


def test_what_is_set_over_and_over_takes_no_more_room() -> None:
    heap: LazyHeap[int] = LazyHeap()
    for key in range(10_000):
        heap.set(0, key)
    assert heap.entries <= 2 + SMALL
