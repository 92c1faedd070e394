"""The progress of runs: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import io

from rich.console import Console

from gateway.commands.replay.compare import Ticker
from tests.commands.replay.runs import summary


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=120, color_system=None)


def said(out: Console) -> str:
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_without_a_terminal_there_is_a_line_for_each_run() -> None:
    out = console(terminal=False)
    ticker = Ticker(out, "a trace", 2)
    with ticker:
        ticker.moved(0, 0.5)
        ticker.done(0, summary(seed=1))
        ticker.done(1, summary(seed=2))
    assert said(out).splitlines() == [
        "a trace: 1 of 2 runs: default, seed 1: TTFT mean 1.50 s, goodput 70.0%, took 2.5 s",
        "a trace: 2 of 2 runs: default, seed 2: TTFT mean 1.50 s, goodput 70.0%, took 2.5 s",
    ]


def test_on_a_terminal_there_is_a_bar_that_never_goes_back() -> None:
    out = console(terminal=True)
    ticker = Ticker(out, "a trace", 2)
    with ticker:
        ticker.moved(0, 0.5)
        ticker.moved(1, 0.5)
        ticker.moved(0, 0.25)  # a closed loop's calls are not all known from the beginning
        ticker._bar.refresh()
    assert "50 %" in said(out)
    assert "0 of 2 runs" in said(out)
