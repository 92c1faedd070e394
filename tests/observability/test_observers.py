from __future__ import annotations

from gateway.core.observer import Observer
from gateway.observability.observers import METHODS, Observers


class Scores(Observer):
    def __init__(self) -> None:
        self.refused: list[str] = []

    def score_refused(self, name: str) -> None:
        self.refused.append(name)


class Queues(Observer):
    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.refused: list[str] = []

    def queued(self, model: str, length: int) -> None:
        self.lengths.append(length)

    def score_refused(self, name: str) -> None:
        self.refused.append(name)


def test_every_method_of_the_contract_is_known() -> None:
    assert {"settled", "queued", "kv_blocks", "endpoint_dropped", "engine_dropped"} <= set(METHODS)
    assert all(not name.startswith("_") for name in METHODS)


def test_all_who_implement_a_method_are_told() -> None:
    scores, queues = Scores(), Queues()
    both = Observers(scores, queues)
    both.score_refused("cost")
    both.queued("m", length=3)
    assert scores.refused == queues.refused == ["cost"]
    assert queues.lengths == [3]


def test_a_single_listener_is_called_directly() -> None:
    queues = Queues()
    both = Observers(Scores(), queues)
    assert both.queued == queues.queued


def test_what_nobody_implements_is_ignored() -> None:
    Observers(Scores()).kv_blocks("m", 1)
    Observers().prefilled("m", 0.1)


def test_observers_nest() -> None:
    queues = Queues()
    Observers(Observers(queues)).queued("m", 1)
    assert queues.lengths == [1]
