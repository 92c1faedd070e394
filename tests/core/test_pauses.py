"""What a loop that stood still knows of it, and whom it does not blame."""

from __future__ import annotations

import asyncio
import time

import pytest
import uvloop

from gateway.core.clock import ManualClock
from gateway.core.pauses import LATE, TICK, Pauses, age_clock, fair_timeout
from tests.support.pause import stand_still
from tests.support.wait import eventually

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


async def test_what_was_lost_is_known_in_the_same_turn():
    pauses = Pauses()
    with pauses.watching():
        before = pauses.lost()
        stand_still(2 * LATE)
        lost = pauses.lost() - before
        assert lost > 2 * LATE - TICK - 0.01
        await asyncio.sleep(0)
        assert pauses.lost() - before >= lost, "and it stays"


async def test_a_suspended_machine_is_a_pause_though_no_timer_is_late():
    clock = ManualClock()
    pauses = Pauses(clock.monotonic)
    with pauses.watching():
        clock.now += 3600
        assert 3599 < pauses.lost() <= 3600
        await eventually(lambda: pauses._due is not None and pauses._due > clock.now, "its next look")
        assert 3599 < pauses.lost() <= 3600, "it is counted once"
        with pauses.watching():
            clock.now += 60
        assert 3658 < pauses.lost() <= 3660, "others watch as well"
        assert pauses._timer is not None
    assert pauses._timer is None, "nothing runs when nobody watches"
    clock.now += 3600
    assert 3658 < pauses.lost() <= 3660
    assert Pauses().lost() == 0.0, "who does not watch loses nothing"


def test_ages_count_what_a_suspended_machine_slept():
    assert age_clock() >= time.monotonic() - 1.0


@pytest.mark.parametrize("loop", LOOPS)
def test_what_came_while_we_stood_still_is_in_time(loop):
    """Timers fire before what lies in the sockets is read, which is what a pause of ours looks like to them."""

    async def scenario() -> None:
        there = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            there.set()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        async with fair_timeout(LATE / 2):
            writer.write(b"now\n")
            stand_still(2 * LATE)
            await there.wait()
        writer.close()
        server.close()
        await server.wait_closed()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(scenario())


async def test_what_does_not_come_ends(monkeypatch):
    monkeypatch.setattr("gateway.core.pauses.TURN", 0.05)
    with pytest.raises(TimeoutError):
        async with fair_timeout(0.0):
            await asyncio.Event().wait()
    with pytest.raises(TimeoutError):
        async with fair_timeout(LATE / 2):
            stand_still(2 * LATE)
            await asyncio.Event().wait()
    async with fair_timeout(0.05):
        pass
    await asyncio.sleep(0.06)  # past its end, which ends nobody any more
