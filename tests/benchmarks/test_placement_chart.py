from __future__ import annotations

import pytest

from benchmarks.placement_chart import compose_grid, draw_grid
from gateway.commands.replay.plot import style
from tests.commands.replay.pictures import PNG, POLICIES, assert_nothing_collides, wide
from tests.commands.replay.runs import comparison
from tests.support.examples import slowly


@pytest.mark.parametrize("cells", [10, *slowly(1, 2, 5)])
@pytest.mark.parametrize("columns", [3, *slowly(4)])
def test_nothing_collides(cells, columns) -> None:
    with style():
        assert_nothing_collides(compose_grid([wide(POLICIES, 3)] * cells, "ttft_mean", columns))


@pytest.mark.parametrize("cells", [1, 5])
def test_a_grid(tmp_path, cells) -> None:
    path = tmp_path / "grid.png"
    draw_grid([comparison(f"cell {number}") for number in range(cells)], "goodput", path, columns=3)
    assert path.read_bytes().startswith(PNG)
