"""What can be read in a picture and where it stands, and a comparison that is hard to draw."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gateway.commands.replay.report import Comparison
from tests.commands.replay.runs import summary

if TYPE_CHECKING:  # a second of importing, which only the process that draws needs
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

PNG = b"\x89PNG\r\n\x1a\n"


def texts(figure: Any) -> list[tuple[str, Bbox]]:
    """All that can be read, and where."""
    from matplotlib.axes import Axes
    from matplotlib.text import Text

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
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

    return [
        line.get_transform().transform_bbox(Bbox.from_extents(*line.get_xydata().min(0), *line.get_xydata().max(0)))
        for axes in figure.findobj(Axes)
        for line in axes.get_lines()
    ]


def assert_nothing_collides(figure: Any) -> list[tuple[str, Bbox]]:
    """Also what can be read."""
    read = texts(figure)
    assert read
    assert_apart(read)
    drawn = [line.padded(0.5) for line in lines(figure)]
    for text, place in read:
        assert figure.bbox.padded(1).containsx(place.x0), text
        assert figure.bbox.padded(1).containsx(place.x1), text
        assert figure.bbox.padded(1).containsy(place.y0), text
        assert figure.bbox.padded(1).containsy(place.y1), text
        for line in drawn:
            assert not place.padded(-0.5).overlaps(line), f"a line goes through {text!r}"
    return read


def assert_apart(read: list[tuple[str, Bbox]]) -> None:
    """No text stands on another: from left to right, each is held against those that begin before it ends."""
    places = sorted(((text, place.padded(-0.5).extents.tolist()) for text, place in read), key=lambda one: one[1][0])
    for number, (ours, (_, low, right, high)) in enumerate(places):
        for theirs, (left, bottom, _, top) in places[number + 1 :]:
            if left > right:
                break
            assert high < bottom or top < low, f"{ours!r} stands on {theirs!r}"


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
