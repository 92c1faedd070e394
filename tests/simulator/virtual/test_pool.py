"""The pool of block ids: what is found, what fits, what is said. What it does in an engine: ``test_engine.py``."""

from __future__ import annotations

import pytest

from simulator.virtual.pool import HOST, Pool, Removed, Stored, Tier


def filled(pool: Pool, *ids: int) -> list[int]:
    """Blocks that hold a prompt of these, in use."""
    blocks = pool.take(len(ids))
    pool.name(blocks, ids, 0, len(ids))
    return blocks


def test_the_longest_leading_run_is_found() -> None:
    pool = Pool(8)
    blocks = filled(pool, 1, 2, 3)
    assert pool.find((1, 2, 3, 4), 4) == blocks
    assert pool.find((1, 2, 3, 4), 2) == blocks[:2]
    assert pool.find((2, 1), 2) == [blocks[1], blocks[0]]
    assert pool.find((4, 1), 2) == []


def test_what_is_found_idle_is_no_room() -> None:
    pool = Pool(4)
    blocks = filled(pool, 1, 2)
    assert (pool.fits(blocks, 2), pool.fits(blocks, 3), pool.fits((), 3)) == (True, False, False)
    pool.release(blocks)
    assert (pool.fits(blocks, 2), pool.fits(blocks, 3), pool.fits((), 3)) == (True, False, True)


def test_a_prompt_is_forgotten_from_its_end_and_the_oldest_first() -> None:
    pool = Pool(4)
    one, other = filled(pool, 1, 2), filled(pool, 3, 4)
    pool.release(other)
    pool.release(one)
    pool.drain()
    pool.take(3)
    assert pool.drain() == [Removed([4, 3, 2], Tier.GPU)]
    assert pool.held == {1}


def test_what_holds_nothing_is_taken_first() -> None:
    pool = Pool(4)
    blocks = filled(pool, 1, 2)
    blank = pool.take(2)
    pool.release(blocks)
    pool.release(blank)
    assert set(pool.take(2)) == set(blank)
    assert pool.held == {1, 2}


def test_one_id_may_be_in_several_blocks() -> None:
    pool = Pool(4, host=4)
    one, other = filled(pool, 1), filled(pool, 1)
    assert pool.find((1,), 1) == one
    pool.release(one)
    pool.take(3)
    assert pool.find((1,), 1) == other
    assert pool.held_on_host == set()  # a copy is left


def test_runs_are_told_at_once() -> None:
    pool = Pool(4)
    blocks = pool.take(3)
    pool.name(blocks, (1, 2, 3), 0, 1)
    pool.name(blocks, (1, 2, 3), 1, 3)
    assert pool.drain() == [Stored((1, 2, 3), None, Tier.GPU)]
    assert pool.drain() == []


def test_the_host_keeps_what_was_used_last() -> None:
    pool = Pool(2, host=2)
    pool.release(filled(pool, 1, 2))
    pool.keep((1, 2))
    pool.release(filled(pool, 3, 4))
    pool.drain()
    assert pool.find((1, 2, 3), 3) == [HOST, HOST]
    assert pool.lacking((1, 3)) == [3]
    pool.keep((3,))
    assert pool.drain() == [Stored([3], None, Tier.CPU), Removed([2], Tier.CPU)]
    assert pool.held_on_host == {1, 3}
    assert pool.find((3, 1), 2) == [*pool.find((3,), 1), HOST]
    assert pool.find((4, 1), 1) == pool.find((4, 1), 2)[:1]


def test_what_comes_and_goes_at_once_is_not_told() -> None:
    pool = Pool(1, host=1)
    pool.keep((3, 2, 1))
    assert pool.drain() == [Stored([1], None, Tier.CPU)]
    assert pool.held_on_host == {1}


def test_more_than_there_is_cannot_be_taken() -> None:
    with pytest.raises(KeyError):
        Pool(2).take(3)
