from __future__ import annotations

from gateway.kvcache.index import pending_blocks
from gateway.kvcache.index.pending_blocks import PendingBlocks


def test_children_are_given_to_their_parent_once():
    waiting = PendingBlocks()
    waiting.add(1, 10, None)
    waiting.add(1, 11, None)
    waiting.add(1, 10, None)
    waiting.add(2, 12, None)
    assert list(waiting.pop_children(1)) == [(10, None, (), 2), (11, None, (), 1)]
    assert list(waiting.pop_children(1)) == []
    assert len(waiting.blocks) == 1


def test_a_copy_that_is_gone_does_not_come_back():
    waiting = PendingBlocks()
    waiting.add(1, 10, None)
    waiting.add(1, 10, None)
    assert waiting.remove(10)
    assert waiting.remove(10)
    assert not waiting.remove(10)
    assert list(waiting.pop_children(1)) == []
    assert len(waiting.blocks) == 0


def test_the_oldest_are_forgotten(monkeypatch):
    monkeypatch.setattr(pending_blocks, "MAX_PENDING", 3)
    waiting = PendingBlocks()
    for name in range(10, 15):
        waiting.add(name % 2, name, None)
    assert len(waiting.blocks) == 3
    assert [name for name, *_ in waiting.pop_children(0)] == [12, 14]
    assert [name for name, *_ in waiting.pop_children(1)] == [13]
