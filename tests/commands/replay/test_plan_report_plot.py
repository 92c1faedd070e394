from __future__ import annotations

import pytest

from gateway.commands.replay.fleet import Kind
from gateway.commands.replay.floor import floors
from gateway.commands.replay.objectives import objectives
from gateway.commands.replay.plan_report import compose
from gateway.commands.replay.plot import style
from gateway.commands.replay.recording import Recording, Trace
from gateway.commands.replay.sizes import Sized, Trial
from gateway.commands.replay.workload import TraceCall
from simulator.virtual.machine import MACHINES
from tests.commands.replay.pictures import assert_apart, texts
from tests.commands.replay.runs import summary
from tests.support.examples import slowly

MACHINE = MACHINES["70b-tp4"]


def trial(engines: int, *shares: float) -> Trial:
    summaries = [summary(seed=seed, goodput=share, ttft_p99=30.0 / engines) for seed, share in enumerate(shares)]
    return Trial((Kind(MACHINE, engines),), shares, 0.99, summaries)


@pytest.mark.parametrize(
    "sizes", [(60, 120, 240, 180, 150, 135, 143, 147, 149, 148), *slowly(((1,),), ((1, 2),), ((3, 6, 7, 9, 12),))]
)
@pytest.mark.parametrize("layouts", [2, *slowly(1)])
def test_no_text_stands_on_another(sizes, layouts) -> None:
    recording = Recording([TraceCall(float(n), (600, 30_000)[n == 9], 5, (n,)) for n in range(200)], 65_536)
    asked = objectives(["ttft=2s,tpot=50ms", "batch:ttft=60s"])
    found = floors(Trace("it", recording), MACHINE, asked)
    trials = {size: trial(size, *(min(1.0, size / sizes[-1] - 0.02 * n) for n in range(3))) for size in sizes}
    sized = Sized(trials, trials[sizes[-1]], None)
    layout = {"prompts and answers together": sized, "prompts computed apart": sized}
    with style():
        figure = compose(
            dict(list(layout.items())[:layouts]), "a trace with a long name, 20 requests/s", found, 0.99, MACHINE
        )
        read = texts(figure)
    assert_apart(read)
    said = " ".join(" ".join(text for text, _ in read).split())
    assert "asked for: 99 %" in said
    assert "the most that any size can: 99.5 %" in said
