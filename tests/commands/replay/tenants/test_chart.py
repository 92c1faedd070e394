"""The chart of runs with tenants: nothing in it stands on anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.commands.replay.plot import style
from gateway.commands.replay.tenants.chart import PANELS, compose, draw
from gateway.commands.replay.tenants.report import gather
from gateway.errors import ConfigError
from tests.commands.replay.pictures import PNG, assert_apart, texts
from tests.commands.replay.tenants.outcomes import outcomes

OURS = frozenset({"fair-cost"})


@pytest.mark.parametrize("loads", [(1.2,), (0.8, 1.0, 1.2, 1.5)])
def test_each_scene_has_a_row_of_panels(loads: tuple[float, ...]) -> None:
    with style():
        read = texts(compose(gather(outcomes(loads)), OURS))
    assert_apart(read)
    words = [text for text, _ in read]
    for title, _, _ in PANELS:
        assert words.count(title) == 2
    assert {"s", "t", "at-once", "fair-cost"} <= set(words)
    assert any("mean of 2 seeds" in text for text in words)


def test_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "it.png"
    draw(gather(outcomes()), OURS, path)
    assert path.read_bytes().startswith(PNG)
    with pytest.raises(ConfigError, match="cannot be written"):
        draw(gather(outcomes()), OURS, Path("/dev/null/it.png"))
