"""Covers: gateway/commands/replay/plot.py.

Pictures are drawn, whatever the number of policies, seeds and cells; and nothing in them stands on anything else.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.commands.replay.plot import compose, draw, style
from gateway.errors import ConfigError
from tests.commands.replay.pictures import PNG, POLICIES, assert_nothing_collides, texts, wide
from tests.commands.replay.runs import comparison
from tests.support.examples import slowly


@pytest.mark.parametrize("seeds", [3, *slowly(1, 2)])
@pytest.mark.parametrize("policies", [1, 5, *slowly(2)])
def test_nothing_collides_in_one_cell(policies, seeds) -> None:
    with style():
        assert_nothing_collides(compose(wide(POLICIES[:policies], seeds)))


def test_nor_with_classes_which_have_panels_of_their_own() -> None:
    with style():
        read = [text for text, _ in assert_nothing_collides(compose(wide(POLICIES[:3], 3, ("batch", "chat"))))]
    assert "class batch: 100 requests" in read
    assert "class chat: 100 requests" in read
    assert sum(text.startswith("TTFT p99, s") for text in read) == 3
    assert any("1,000 requests, mean of 3 seeds; lines: 95 % interval of the mean" in text for text in read)


def test_the_largest_of_many_classes_are_shown() -> None:
    with style():
        read = [text for text, _ in texts(compose(wide(POLICIES[:2], 1, [f"c{n}" for n in range(30)])))]
    assert sum(text.startswith("class c") for text in read) == 8


@pytest.mark.parametrize("seeds", [1, 3])
def test_one_cell(tmp_path, seeds) -> None:
    path = tmp_path / "deep" / "it.png"
    draw(comparison(seeds=seeds), path)
    assert path.read_bytes().startswith(PNG)


def test_another_format_by_its_suffix(tmp_path) -> None:
    draw(comparison(), tmp_path / "it.svg")
    assert "<svg" in (tmp_path / "it.svg").read_text()


def test_what_cannot_be_written_is_named(tmp_path) -> None:
    for path in (tmp_path / "it.unknown", Path("/dev/null/it.png")):
        with pytest.raises(ConfigError, match=f"{path}: cannot be written"):
            draw(comparison(), path)
