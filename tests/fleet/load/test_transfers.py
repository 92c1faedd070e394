from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.load.transfers import HALF_LIFE, MOST_TRANSFERS, RecentTransfers
from gateway.framework.fleet import TransferStats


def per_byte(transfers: TransferStats) -> float:
    return transfers.seconds / transfers.bytes


def test_the_first_scrape_tells_of_all_since_the_start():
    assert RecentTransfers().update(TransferStats(10, 1e9, 0.5, 3000), at=5.0) == TransferStats(10, 1e9, 0.5, 3000)


def test_what_came_before_counts_no_more_than_a_few_dozen_transfers():
    transfers = RecentTransfers()
    long = transfers.update(TransferStats(1e6, 1e15, 4e4, 3e9), at=5.0)
    assert (long.count, per_byte(long)) == (MOST_TRANSFERS, pytest.approx(4e-11))
    assert long.bytes / long.tokens == pytest.approx(1e15 / 3e9)
    now = transfers.update(TransferStats(1e6 + 200, 1e15 + 200e9, 4e4 + 200 * 10, 3e9), at=6.0)
    assert per_byte(now) == pytest.approx(1e-8, rel=0.3)


def test_it_fades_where_nothing_is_moved():
    transfers, total = RecentTransfers(), TransferStats(10, 1e9, 0.5, 3000)
    transfers.update(total, at=0.0)
    later = transfers.update(total, at=HALF_LIFE)
    assert later == TransferStats(5, 5e8, 0.25, 1500)


def test_who_has_begun_anew_is_known_by_its_counts():
    transfers = RecentTransfers()
    transfers.update(TransferStats(10, 1e9, 0.5, 3000), at=1.0)
    assert transfers.update(TransferStats(2, 1e8, 0.1, 300), at=1.0) == TransferStats(12, 1.1e9, 0.6, 3300)


def test_who_transfers_nothing_has_nothing():
    transfers = RecentTransfers()
    assert transfers.update(TransferStats(), at=1.0) == transfers.update(TransferStats(), at=2.0) == TransferStats()


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e15), st.floats(0, 1e6), st.floats(0, 1e9), st.floats(0, 1e5)))
)
def test_no_count_is_ever_below_zero(scrapes):
    transfers = RecentTransfers()
    for *counts, at in scrapes:
        lately = transfers.update(TransferStats(*counts), at)
        assert min(lately.count, lately.bytes, lately.seconds, lately.tokens) >= 0
        assert lately.count <= MOST_TRANSFERS * (1 + 1e-9)
