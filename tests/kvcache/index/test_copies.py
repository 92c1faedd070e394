from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.kvcache.index.copies import COUNT_MAX, Copies
from gateway.kvcache.index.layers import Layer

TIERS = (Layer.GPU, Layer.CPU, Layer.STORAGE)
steps = st.lists(st.tuples(st.sampled_from(["add", "take", "forget"]), st.integers(0, 2), st.sampled_from(TIERS)))


@given(steps)
def test_it_counts(steps):
    copies = Copies()
    naive = {name: Counter({Layer.GPU: 1}) for name in range(3)}
    for step, name, tier in steps:
        if step == "add":
            assert copies.add(name, tier) is (naive[name][tier] == 0)
            naive[name][tier] += 1
        elif step == "take":
            assert copies.remove(name, tier) is (naive[name][tier] == 1)
            naive[name] -= Counter([tier])
        else:
            assert set(copies.drop(name)) == set(+naive[name])
            naive[name] = Counter({Layer.GPU: 1})  # stored again, as a new one
        for one in range(3):
            assert [copies.count(one, tier) for tier in TIERS] == [naive[one][tier] for tier in TIERS]
            assert copies.is_below(one) is bool(naive[one][Layer.CPU] or naive[one][Layer.STORAGE])
        assert copies.is_tiered is any(copies.is_below(one) for one in range(3))


def test_counts_end_somewhere():
    copies = Copies()
    for _ in range(COUNT_MAX + 10):
        copies.add(1, Layer.GPU)
        copies.add(1, Layer.CPU)
    assert copies.count(1, Layer.GPU) == copies.count(1, Layer.CPU) == COUNT_MAX


def test_a_second_copy_ends_with_age():
    copies = Copies()
    copies.turnover = 10
    copies.add(1, Layer.GPU)
    copies.computed += 10
    assert copies.count(1, Layer.GPU) == 2
    copies.computed += 1
    assert copies.remove(1, Layer.GPU)
    assert copies.count(1, Layer.GPU) == 0
