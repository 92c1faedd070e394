"""Who accepts the clients of a worker that does not, until its successor serves: a start takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.workers.worker import Worker


class Cover:
    """``alive``: gives the workers that accept clients, as far as it is known."""

    def __init__(self, alive: Callable[[], Sequence[Worker]]) -> None:
        self._alive = alive
        self._covered: dict[int, Worker] = {}
        self._listens: set[int] = set()
        """Numbers of workers whose sockets listen: one of them has accepted before."""
        self._leaving: set[Worker] = set()

    def serves(self, worker: Worker) -> None:
        """This worker accepts clients."""
        self._listens.add(worker.number)

    def leaves(self, worker: Worker) -> None:
        """This worker accepts no more clients, or has ended: others accept its own, and those that it has covered."""
        if worker.ended.done():
            self._leaving.discard(worker)
        else:
            self._leaving.add(worker)
        uncovered = [number for number, by in self._covered.items() if by is worker]
        if worker.number in self._listens and worker.number not in self._covered:
            uncovered.append(worker.number)
        for number in uncovered:
            self._covered.pop(number, None)
            others = (each for each in self._alive() if each is not worker and each not in self._leaving)
            if (by := next(others, None)) is not None:
                self._covered[number] = by
                by.cover(number)

    def ends(self, number: int) -> None:
        """The worker of this number is about to accept its clients itself."""
        if (by := self._covered.pop(number, None)) is not None:
            by.uncover(number)
