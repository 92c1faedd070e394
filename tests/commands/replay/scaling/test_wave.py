from __future__ import annotations

from itertools import pairwise

import pytest

from gateway.commands.replay.scaling.wave import Wave, Waved, wave
from gateway.commands.replay.workload import TraceCall
from gateway.errors import ConfigError


class Even:
    """A call a second for 1000 seconds."""

    name, block_size = "even", 16

    def start(self):
        return [TraceCall(float(at), 10, 1, (at,)) for at in range(1000)]

    def answered(self, call, at):
        raise AssertionError("it is open")


def test_the_load_rises_and_falls_and_no_call_is_lost() -> None:
    waved = Waved(Even(), Wave(3.0, 500.0))
    times = [call.at for call in waved.start()]
    assert all(one < other for one, other in pairwise(times))
    assert times[0] == pytest.approx(0, abs=1e-6)
    assert times[500] == pytest.approx(500, abs=1e-6), "a whole period has as many as before"
    trough, peak = (sum(1 for at in times if start <= at < start + 20) for start in (490, 240))
    assert (trough, peak) == (pytest.approx(10, abs=1), pytest.approx(30, abs=1))
    assert [call.blocks for call in waved.start()] == [(at,) for at in range(1000)]
    assert list(waved.answered(waved.start()[0], 1.0)) == []


def test_without_a_wave_nothing_moves() -> None:
    assert [call.at for call in Waved(Even(), None).start()] == [float(at) for at in range(1000)]


def test_it_is_read() -> None:
    assert wave("4:1200") == Wave(4.0, 1200.0)


@pytest.mark.parametrize("text", ["4", "4:", "x:1", "0.5:100", "4:0", "4:99999999"])
def test_what_is_wrong_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--wave"):
        wave(text)
