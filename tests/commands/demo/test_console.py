from __future__ import annotations

import io

import pytest
from rich.console import Console

from gateway.commands.demo.console import Ticker, introduce, table
from gateway.commands.demo.drive import Result, Sample
from gateway.commands.demo.scene import Scene


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=120, color_system=None)


def said(out: Console) -> str:
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_without_a_terminal_there_is_a_line_for_each_quarter() -> None:
    out = console(terminal=False)
    with Ticker(out, "round robin", 8) as ticker:
        ticker.serving()
        for number in range(8):
            ticker.tick(Sample(None, "502") if number == 4 else Sample(0.1))
    assert said(out).splitlines() == [
        "round robin: starting engines and gateway",
        "round robin: 2 of 8 requests, 0 failed",
        "round robin: 4 of 8 requests, 0 failed",
        "round robin: 6 of 8 requests, 1 failed",
        "round robin: 8 of 8 requests, 1 failed",
    ]


def test_on_a_terminal_there_is_a_bar() -> None:
    out = console(terminal=True)
    with Ticker(out, "round robin", 2) as ticker:
        ticker.serving()
        ticker.tick(Sample(0.1))
        ticker.tick(Sample(None, "refused"))
    assert "━" in said(out)
    assert "2/2" in said(out)
    assert "1 failed" in said(out)


def test_the_introduction_says_what_is_simulated() -> None:
    out = console(terminal=False)
    introduce(out, Scene())
    assert "4 simulated engines" in said(out)
    assert "12,500 prompt tokens/s" in said(out)
    assert "22,400 tokens" in said(out)


def test_the_table_has_both_runs_side_by_side() -> None:
    out = console(terminal=False)
    out.print(
        table(
            [
                Result("round robin", 144, 0, 800_000, 200_000, (0.4,) * 144, 20.0),
                Result("kvgate, default profile", 144, 2, 800_000, 700_000, (0.05,) * 142, 10.0),
            ]
        )
    )
    rows = {
        cells[0]: cells[1:]
        for line in said(out).splitlines()
        if len(cells := [c.strip() for c in line.split("│")[1:-1]]) == 3
    }
    assert rows["errors"] == ["0", "2"]
    assert rows["prompt tokens"] == ["800,000", "800,000"]
    assert rows["share"] == ["25.0%", "87.5%"]
    assert rows["TTFT p99"] == ["400 ms", "50 ms"]


@pytest.mark.parametrize("terminal", [True, False])
def test_an_interrupted_run_leaves_no_bar_behind(terminal) -> None:
    out = console(terminal)
    with pytest.raises(KeyboardInterrupt), Ticker(out, "round robin", 2):
        raise KeyboardInterrupt
