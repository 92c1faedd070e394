from __future__ import annotations

import pytest

from gateway.commands.replay.scaling.triggers import USUAL, Figures, Trigger, triggers
from gateway.errors import ConfigError

FIGURES = Figures(engines=4, wanted=6, in_flight=70, waiting=3, kv=0.77)


@pytest.mark.parametrize(
    ("text", "engines"),
    [("wanted", 6), ("running:16", 5), ("running", 5), ("running:70", 1), ("queue:1", 5), ("fixed:3", 3)],
)
def test_what_each_asks_for(text: str, engines: int) -> None:
    [trigger] = triggers(text)
    assert trigger.desired(FIGURES) == engines


def test_a_long_queue_asks_for_more_than_what_runs() -> None:
    assert Trigger("queue", 1.0).desired(FIGURES._replace(waiting=30)) == 30


@pytest.mark.parametrize(("used", "engines"), [(0.7, 4), (0.76, 4), (0.78, 5), (1.0, 6), (0.6, 4), (0.35, 2), (0.0, 0)])
def test_a_ratio_near_1_changes_nothing(used: float, engines: int) -> None:
    assert Trigger("kv", 0.7).desired(FIGURES._replace(kv=used)) == engines


def test_names_and_thresholds_are_read() -> None:
    assert [one.name for one in triggers("wanted, running:32,kv,running:32")] == ["wanted", "running:32", "kv:0.7"]
    assert len(triggers(USUAL)) == 6


@pytest.mark.parametrize("text", ["runing", "running:x", "running:0", "kv:-1"])
def test_wrong_triggers_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--scale"):
        triggers(text)
