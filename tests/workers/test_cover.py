from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.workers.cover import Cover


class Worker:
    """One that notes what it is told."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.said: list[str] = []
        self.dead = False
        self.ended: Any = SimpleNamespace(done=lambda: self.dead)

    def cover(self, number: int) -> None:
        self.said.append(f"cover {number}")

    def uncover(self, number: int) -> None:
        self.said.append(f"uncover {number}")


@pytest.fixture
def team() -> list[Worker]:
    return [Worker(number) for number in range(3)]


@pytest.fixture
def cover(team) -> Cover:
    cover = Cover(lambda: [worker for worker in team if not worker.dead])
    for worker in team:
        cover.serves(worker)
    return cover


def dies(cover: Cover, worker: Worker) -> None:
    worker.dead = True
    cover.leaves(worker)


def test_another_accepts_until_the_successor_does(team, cover) -> None:
    dies(cover, team[1])
    assert (team[0].said, team[2].said) == (["cover 1"], [])
    team[1].dead = False  # its successor
    cover.serves(team[1])
    assert team[0].said == ["cover 1", "uncover 1"]
    cover.serves(team[1])
    cover.serves(team[2])
    assert team[0].said == ["cover 1", "uncover 1"]


def test_who_covers_may_die_too(team, cover) -> None:
    dies(cover, team[1])
    dies(cover, team[0])
    assert sorted(team[2].said) == ["cover 0", "cover 1"]
    dies(cover, team[2])  # then all wait for the first successor
    successor = team[1] = Worker(1)
    cover.serves(successor)
    assert successor.said == ["cover 0", "cover 2"]


def test_one_that_leaves_is_covered_once_and_covers_nobody(team, cover) -> None:
    cover.leaves(team[0])
    assert team[1].said == ["cover 0"]
    dies(cover, team[2])
    assert (team[0].said, team[1].said) == ([], ["cover 0", "cover 2"])
    dies(cover, team[0])
    assert team[1].said == ["cover 0", "cover 2"]


def test_one_that_stands_still_is_covered_until_it_runs_again(team, cover) -> None:
    cover.leaves(team[0])
    cover.leaves(team[1])
    assert (team[1].said, team[2].said) == (["cover 0", "uncover 0"], ["cover 0", "cover 1"])
    cover.leaves(team[2])  # all load a tokenizer
    cover.serves(team[1])
    assert team[2].said == ["cover 0", "cover 1", "uncover 0", "uncover 1"]
    assert team[1].said == ["cover 0", "uncover 0", "cover 0", "cover 2"]
    cover.serves(team[0])
    cover.serves(team[2])
    assert team[1].said[4:] == ["uncover 0", "uncover 2"]


def test_who_has_never_accepted_has_nobody_waiting(team) -> None:
    cover = Cover(lambda: team[:1])
    dies(cover, team[1])
    assert team[0].said == []
