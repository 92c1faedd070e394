"""Pictures are drawn, whatever the number of policies, seeds and cells."""

from __future__ import annotations

import pytest

from gateway.replay.plot import draw, draw_grid
from tests.replay.runs import comparison

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("seeds", [1, 3])
def test_one_cell(tmp_path, seeds) -> None:
    path = tmp_path / "deep" / "it.png"
    draw(comparison(seeds=seeds), path)
    assert path.read_bytes().startswith(PNG)


@pytest.mark.parametrize("cells", [1, 5])
def test_a_grid(tmp_path, cells) -> None:
    path = tmp_path / "grid.png"
    draw_grid([comparison(f"cell {number}") for number in range(cells)], "goodput", path, columns=3)
    assert path.read_bytes().startswith(PNG)


def test_another_format_by_its_suffix(tmp_path) -> None:
    draw(comparison(), tmp_path / "it.svg")
    assert "<svg" in (tmp_path / "it.svg").read_text()
