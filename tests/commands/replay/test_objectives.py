"""Objectives as they are written, and whose they are."""

from __future__ import annotations

import pytest

from gateway.commands.replay.objectives import USUAL, Objectives, objectives
from gateway.errors import ConfigError
from gateway.framework.request import Slo


def test_objectives_are_of_all_or_of_a_class() -> None:
    found = objectives(["ttft=2s,tpot=50ms", "batch:ttft=30 s", "a:b:tpot=0.1s"])
    assert found.asked("") == found.asked("chat") == Slo(2.0, 0.05)
    assert found.asked("batch") == found.judged("batch") == Slo(30.0, None)
    assert found.asked("a:b") == Slo(None, 0.1)
    assert str(found) == "ttft=2s,tpot=50ms batch:ttft=30s a:b:tpot=100ms"
    assert objectives(str(found).split()) == found


def test_nothing_is_asked_for_and_2_s_and_50_ms_count_where_nobody_says() -> None:
    assert Objectives().asked("chat") is None
    assert Objectives().judged("chat") == USUAL == Slo(2.0, 0.05)
    assert objectives(["batch:ttft=30s"]).asked("chat") is None
    assert str(Objectives()) == ""


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["2s"], "'2s' must be NAME=VALUE"),
        (["ttft=2"], "'2' must be a time above 0"),
        (["ttft=0s"], "'0s' must be a time above 0"),
        (["ttft=-1s"], "'-1s' must be a time"),
        (["ttft=100000s"], "up to a day"),
        (["tptt=2s"], "there is no 'tptt'; did you mean 'ttft'|there is no 'tptt'; did you mean 'tpot'"),
        (["ttft=1s,ttft=2s"], "ttft is given twice"),
        (["ttft=1s", "tpot=2s"], "all have objectives already"),
        (["a:ttft=1s", "a:tpot=2s"], "the class 'a' has objectives already"),
    ],
)
def test_objectives_that_make_no_sense(texts, said) -> None:
    with pytest.raises(ConfigError, match=said):
        objectives(texts)
