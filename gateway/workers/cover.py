"""Who accepts the clients of a worker that does not: until its successor serves, which takes seconds, or until it runs
again."""

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
        self._away: set[Worker] = set()
        """Those that live, and accept no clients."""

    def serves(self, worker: Worker) -> None:
        """This worker accepts clients, maybe again."""
        self._listens.add(worker.number)
        self._away.discard(worker)
        if (by := self._covered.pop(worker.number, None)) is not None:
            by.uncover(worker.number)
        self._assign()

    def leaves(self, worker: Worker) -> None:
        """This worker accepts no more clients, for now or for good, or has ended: others accept its own, and those that
        it has covered."""
        if worker.ended.done():
            self._away.discard(worker)
        else:
            self._away.add(worker)
        for number in [number for number, by in self._covered.items() if by is worker]:
            del self._covered[number]
            worker.uncover(number)
        self._assign()

    def _assign(self) -> None:
        able = [worker for worker in self._alive() if worker not in self._away]
        if able:
            for number in self._listens.difference(self._covered, (worker.number for worker in able)):
                self._covered[number] = able[0]
                able[0].cover(number)
