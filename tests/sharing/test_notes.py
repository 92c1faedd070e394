"""Notes between the workers of a host, over real Unix sockets."""

from __future__ import annotations

import pytest

from gateway.sharing.notes import Notes
from tests.support.wait import eventually


class Memory:
    """What one worker remembers: all that it told and heard."""

    def __init__(self, worker) -> None:
        self.kept: dict[tuple[str, bytes], None] = {}
        self.notes = Notes(worker.siblings, self.keep, lambda: list(self.kept))

    def keep(self, name: str, note: bytes) -> None:
        self.kept[name, note] = None

    def learn(self, name: str, note: bytes) -> None:
        self.keep(name, note)
        self.notes.tell(name, note)


@pytest.fixture
async def memories(make):
    """``await memories(number)`` starts a worker with its memory."""
    made = []

    async def start(number: int):
        worker = make(number)
        made.append(Memory(worker))
        await worker.siblings.start()
        return worker, made[-1]

    yield start
    for memory in made:
        await memory.notes.close()


async def test_what_one_learns_all_know_and_one_that_starts_hears_it_once(memories):
    (worker, first), (_, second) = await memories(0), await memories(1)
    await eventually(lambda: worker.siblings.live == {0, 1}, within=30)
    first.learn("a", b"1")
    second.learn("b", b"2")
    both = [("a", b"1"), ("b", b"2")]
    await eventually(lambda: sorted(first.kept) == sorted(second.kept) == both, within=30)
    _, third = await memories(2)
    await eventually(lambda: len(third.kept) == 2, within=30)
    second.learn("c", b"3")
    await eventually(lambda: ("c", b"3") in third.kept and ("c", b"3") in first.kept, within=30)
    assert sorted(third.kept) == [*both, ("c", b"3")]
    assert len(first.kept) == len(second.kept) == 3


async def test_the_next_lead_hears_it_from_who_led_meanwhile(memories):
    worker, first = await memories(0)
    _, second = await memories(1)
    await worker.siblings.close()
    await first.notes.close()
    second.learn("a", b"1")
    _, back = await memories(0)
    await eventually(lambda: list(back.kept) == [("a", b"1")], within=30)
