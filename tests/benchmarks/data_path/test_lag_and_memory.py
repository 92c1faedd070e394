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
from benchmarks.data_path.lag import at, late, request
from benchmarks.data_path.lag_filter import Lag, LagParameters
from benchmarks.data_path.memory import EXPECTED, KINDS, LOOKS, Load
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
    assert json.loads(body)["user"] == "hold tokens=5"


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
