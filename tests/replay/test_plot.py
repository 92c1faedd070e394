"""Pictures are drawn, whatever the number of policies, seeds and cells; and nothing in them stands on anything else."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from gateway.errors import ConfigError
from gateway.replay import plan_plot
from gateway.replay.figure import style
from gateway.replay.floor import floors
from gateway.replay.kinds import Kind
from gateway.replay.objectives import objectives
from gateway.replay.plot import compose, compose_grid, draw, draw_grid
from gateway.replay.recording import Line, Recording, Trace
from gateway.replay.report import Comparison
from gateway.replay.sizes import Sized, Trial
from simulator.virtual.machine import MACHINES
from tests.replay.runs import comparison, summary

PNG = b"\x89PNG\r\n\x1a\n"
MACHINE = MACHINES["70b-tp4"]


def texts(figure: Any) -> list[tuple[str, Bbox]]:
    """All that can be read, and where."""
    figure.draw_without_rendering()
    unseen = {id(label) for axes in figure.findobj(Axes) for axis in (axes.xaxis, axes.yaxis) for label in beyond(axis)}
    found = [one for one in figure.findobj(Text) if one.get_text().strip() and one.get_visible()]
    shown = [one for one in found if id(one) not in unseen and (one.axes is None or one.axes.get_visible())]
    return [(one.get_text(), one.get_window_extent()) for one in shown]


def beyond(axis: Any) -> Iterator[Text]:
    """Labels that are not drawn, since their ticks are outside what is shown."""
    low, high = sorted(axis.get_view_interval())
    for tick, at in zip(axis.get_major_ticks(), axis.get_majorticklocs(), strict=False):
        if not low <= at <= high:
            yield from (tick.label1, tick.label2)


def lines(figure: Any) -> list[Bbox]:
    """Of each panel the intervals' lines, with some height."""
    return [
        line.get_transform().transform_bbox(Bbox.from_extents(*line.get_xydata().min(0), *line.get_xydata().max(0)))
        for axes in figure.findobj(Axes)
        for line in axes.get_lines()
    ]


def assert_nothing_collides(figure: Any) -> None:
    read = texts(figure)
    assert read
    for (ours, here), (theirs, there) in combinations(read, 2):
        assert not here.padded(-0.5).overlaps(there.padded(-0.5)), f"{ours!r} stands on {theirs!r}"
    for text, place in read:
        assert figure.bbox.padded(1).containsx(place.x0), text
        assert figure.bbox.padded(1).containsx(place.x1), text
        assert figure.bbox.padded(1).containsy(place.y0), text
        assert figure.bbox.padded(1).containsy(place.y1), text
        for line in lines(figure):
            assert not place.padded(-0.5).overlaps(line.padded(0.5)), f"a line goes through {text!r}"


def wide(policies: Sequence[str], seeds: int, classes: Sequence[str] = ()) -> Comparison:
    """Figures of all lengths, with intervals that are many times as long."""
    summaries = {
        policy: [
            summary(
                policy,
                seed,
                ttft_mean=10.0 ** (n % 4) * (1 + 0.5 * seed),
                ttft_p99=12_345.6 / seed,
                tpot_mean=0.012 * seed,
                hit_rate=min(1.0, 0.3 * n),
                goodput=0.99 if seed % 2 else 0.2,
            )
            for seed in range(1, seeds + 1)
        ]
        for n, policy in enumerate(policies)
    }
    for found in summaries.values():
        found[:] = [
            dataclasses.replace(one, classes={name: {"requests": 100, **one.values} for name in classes})
            for one in found
        ]
    name = "mooncake_conversation, 0.45 requests/s/endpoint, 4 x 70b-tp4+host + 4 x 8b-h100+host, ttft=2s,tpot=50ms"
    return Comparison(name, {}, summaries)


POLICIES = ("default", "llm-d-sticky", "session-affinity", "dynamo-cost-6", "least-requests")


@pytest.mark.parametrize("seeds", [1, 2, 3])
@pytest.mark.parametrize("policies", [1, 2, 5])
def test_nothing_collides_in_one_cell(policies, seeds) -> None:
    with style():
        assert_nothing_collides(compose(wide(POLICIES[:policies], seeds)))


def test_nor_with_classes_which_have_panels_of_their_own() -> None:
    with style():
        figure = compose(wide(POLICIES[:3], 3, ("batch", "chat")))
        assert_nothing_collides(figure)
    read = [text for text, _ in texts(figure)]
    assert "class batch: 100 requests" in read
    assert "class chat: 100 requests" in read
    assert sum(text.startswith("TTFT p99, s") for text in read) == 3
    assert any("1,000 requests, mean of 3 seeds; lines: 95 % interval of the mean" in text for text in read)


def test_the_largest_of_many_classes_are_shown() -> None:
    with style():
        read = [text for text, _ in texts(compose(wide(POLICIES[:2], 1, [f"c{n}" for n in range(30)])))]
    assert sum(text.startswith("class c") for text in read) == 8


@pytest.mark.parametrize("cells", [1, 2, 5, 10])
@pytest.mark.parametrize("columns", [3, 4])
def test_nor_in_a_grid(cells, columns) -> None:
    with style():
        assert_nothing_collides(compose_grid([wide(POLICIES, 3)] * cells, "ttft_mean", columns))


def trial(engines: int, *shares: float) -> Trial:
    summaries = [summary(seed=seed, goodput=share, ttft_p99=30.0 / engines) for seed, share in enumerate(shares)]
    return Trial((Kind(MACHINE, engines),), shares, 0.99, summaries)


@pytest.mark.parametrize("sizes", [(1,), (1, 2), (3, 6, 7, 9, 12), (60, 120, 240, 180, 150, 135, 143, 147, 149, 148)])
@pytest.mark.parametrize("layouts", [1, 2])
def test_nor_in_a_plan(sizes, layouts) -> None:
    recording = Recording([Line(float(n), (600, 30_000)[n == 9], 5, (n,)) for n in range(200)], 65_536)
    asked = objectives(["ttft=2s,tpot=50ms", "batch:ttft=60s"])
    found = floors(Trace("it", recording), MACHINE, asked)
    trials = {size: trial(size, *(min(1.0, size / sizes[-1] - 0.02 * n) for n in range(3))) for size in sizes}
    sized = Sized(trials, trials[sizes[-1]], None)
    layout = {"prompts and answers together": sized, "prompts computed apart": sized}
    with style():
        figure = plan_plot.compose(
            dict(list(layout.items())[:layouts]), "a trace with a long name, 20 requests/s", found, 0.99, MACHINE
        )
        read = texts(figure)
    for (ours, here), (theirs, there) in combinations(read, 2):
        assert not here.padded(-0.5).overlaps(there.padded(-0.5)), f"{ours!r} stands on {theirs!r}"
    said = " ".join(" ".join(text for text, _ in read).split())
    assert "asked for: 99 %" in said
    assert "the most that any size can: 99.5 %" in said


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


def test_what_cannot_be_written_is_named(tmp_path) -> None:
    for path in (tmp_path / "it.unknown", Path("/dev/null/it.png")):
        with pytest.raises(ConfigError, match=f"{path}: cannot be written"):
            draw(comparison(), path)
