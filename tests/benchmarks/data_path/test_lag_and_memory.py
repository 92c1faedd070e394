"""The clock in the gateway's loop, and the requests of the soak."""

from __future__ import annotations

import asyncio
import json
import struct
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from benchmarks.data_path import lag_filter
from benchmarks.data_path.builds import KVGATE, PURE
from benchmarks.data_path.engines import ORDERS
from benchmarks.data_path.lag import at, judged, late, request
from benchmarks.data_path.lag_filter import Lag, LagParameters
from benchmarks.data_path.memory import EXPECTED, GROWTH, KINDS, LOOKS, WARM_REQUESTS, Load, remains, warm_at
from gateway.commands.processes import Processes
from tests.benchmarks.data_path.small import engines, small_text
from tests.support.wait import eventually


async def test_a_standstill_is_seen_tick_by_tick(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(lag_filter, "WRITTEN", 20)
    path = tmp_path / "ticks"
    loop = asyncio.get_running_loop()
    clock = Lag(LagParameters(str(path)), SimpleNamespace())  # type: ignore[arg-type]
    endpoints: list[Any] = [object(), object()]
    began = loop.time()
    assert clock.filter(SimpleNamespace(), endpoints) is endpoints  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    stood = loop.time()
    while loop.time() - stood < 0.1:
        pass
    await eventually(lambda: path.exists() and len(late(path, stood, stood + 0.1)) >= 45, "written down")
    lags = late(path, stood, stood + 0.1)
    assert lags[-1] >= 95, "milliseconds: who was due at its begin waited for all of it"
    assert at(lags, 0.5) >= 45
    assert late(path, 0, began - 1) == []


def test_ticks_outside_of_the_time_do_not_count(tmp_path) -> None:
    path = tmp_path / "ticks"
    path.write_bytes(b"".join(struct.pack("dd", due, due / 1000) for due in (1.0, 2.0, 3.0)))
    assert late(path, 1.5, 3.0) == pytest.approx([2.0, 3.0])


def test_a_request_is_whole() -> None:
    whole = request([{"role": "user", "content": "x"}], "hold", stream=True, tokens=5)
    head, _, body = whole.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"content-length: %d" % len(body) in head
    assert json.loads(body)[ORDERS] == "hold tokens=5"


def test_a_tick_that_comes_early_is_not_late(tmp_path, monkeypatch) -> None:
    """Timers of uvloop have whole milliseconds, and may fire before their time."""
    monkeypatch.setattr(lag_filter, "WRITTEN", 1)
    clock = Lag(LagParameters(str(tmp_path / "ticks")), SimpleNamespace())  # type: ignore[arg-type]
    monkeypatch.setattr(clock, "_again", lambda now: None)
    for now in (9.9995, 10.0045):
        monkeypatch.setattr(clock, "_due", 10.0)
        monkeypatch.setattr("time.monotonic", lambda now=now: now)
        clock._look()
    assert late(tmp_path / "ticks", 0, 20) == pytest.approx([0.0, 0.5, 2.5, 4.5])


def test_equal_runs_are_judged_by_their_median_and_their_differences() -> None:
    verdict = judged(KVGATE, PURE, [8.0, 10.0, 8.0])
    assert verdict.value == 8.0
    assert verdict.noise == pytest.approx(0.25)
    assert verdict.met
    assert not judged(KVGATE, PURE, [10.0, 12.0]).missed, "not by more than the noise"
    assert judged(KVGATE, PURE, [15.0, 15.1]).missed


def test_memory_is_judged_once_it_is_warm() -> None:
    assert warm_at(1_000_000) == LOOKS // 10
    assert warm_at(200_000) == 5
    assert warm_at(2 * WARM_REQUESTS) == LOOKS // 2
    assert warm_at(2 * WARM_REQUESTS - 1) is None
    memory = [100_000_000 + 1_000_000 * min(look, 6) for look in range(LOOKS + 2)]
    assert [figure.met for figure in remains(memory, 120_000)] == ["", "", "", "met"]
    assert remains(memory, 1_000_000)[-1].met == "NOT MET"
    assert remains(memory, 1_000_000)[-1].target == pytest.approx(GROWTH * 102)
    assert [figure.met for figure in remains(memory, 20_000)] == ["", "", ""], "too few to tell"


async def test_the_soak_asks_for_everything_and_sees_what_comes(tmp_path) -> None:
    made = small_text(tmp_path)
    looks: list[int] = []
    with Processes(tmp_path) as processes:
        port = urlsplit(engines(processes, "-")[0]).port
        assert port is not None
        load = Load(port, made, 200, lambda: looks.append(load.done))
        await load.run()
    assert load.done == 200
    assert len(looks) == LOOKS
    kinds = {name.partition(" ")[0] for name in load.seen}
    assert kinds == set(KINDS)
    # IncomingRequest without a gateway, who breaks off is the engine itself: never a 502.
    assert set(load.seen) <= EXPECTED
