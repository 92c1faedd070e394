"""The engine in real time: who gets which token, and that nothing else is stopped meanwhile."""

from __future__ import annotations

import asyncio
import itertools
from array import array
from collections.abc import AsyncIterator

import pytest

from simulator.blocks import HashChain, KvEvent, Stored
from simulator.driver import Driver, Stream
from simulator.engine import Engine
from simulator.job import Finish, Job
from simulator.settings import EngineSettings
from simulator.transfer.connector import Connector
from tests.support.wait import eventually


def job(start: int = 0, max_tokens: int = 5, first: int = 900) -> Job:
    return Job(
        id=str(start),
        tokens=array("I", range(start, start + 40)),
        max_tokens=max_tokens,
        sampler=itertools.count(first),
        chain=HashChain(16),
        arrived=0.0,
    )


@pytest.fixture
async def driver() -> AsyncIterator[Driver]:
    """One whose steps take no time at all."""
    settings = EngineSettings(step_seconds=0.0, prefill_token_seconds=0.0)
    engine = Engine(settings)
    made = Driver(engine, heard.append, Connector(settings, engine, "", 0))
    heard.clear()
    made.start()
    yield made
    await made.close()


heard: list[list[KvEvent]] = []


async def tokens(stream: Stream) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    async with asyncio.timeout(30):
        async for output in stream:
            found.setdefault(output.job.id, []).append(output.token)
    return found


async def test_each_request_gets_its_own_tokens(driver: Driver) -> None:
    one, two = driver.submit([job(0, 3, 900)]), driver.submit([job(100, 2, 800), job(200, 4, 700)])
    assert await tokens(two) == {"100": [800, 801], "200": [700, 701, 702, 703]}
    assert await tokens(one) == {"0": [900, 901, 902]}


async def test_events_are_out_before_the_tokens(driver: Driver) -> None:
    async for _ in driver.submit([job()]):
        assert isinstance(heard[0][0], Stored)


async def test_it_sleeps_and_wakes(driver: Driver) -> None:
    for start in (0, 100):
        assert len((await tokens(driver.submit([job(start)])))[str(start)]) == 5
        await asyncio.sleep(0)


async def test_a_job_that_is_ended_early_is_not_waited_for(driver: Driver) -> None:
    kept, cut = job(0, 4), job(100, 10_000)
    stream = driver.submit([kept, cut])
    seen = 0
    async with asyncio.timeout(30):
        async for output in stream:
            seen += 1
            if output.job is cut and cut.finish is None:
                stream.end(cut, Finish.STOP)
    assert (kept.finish, cut.finish) == (Finish.LENGTH, Finish.STOP)
    assert not stream.abort(), "all has ended"


async def test_an_abort_frees_everything(driver: Driver) -> None:
    stream = driver.submit([job(0, 10_000), job(100, 10_000)])
    await eventually(lambda: len(driver.engine.running) == 2, "both run")
    assert stream.abort()
    assert (driver.engine.running, driver.engine.pool.usage) == ([], 0)


async def test_steps_without_duration_let_others_run(driver: Driver) -> None:
    driver.submit([job(0, 10_000)])
    for _ in range(50):
        await asyncio.sleep(0)
    assert 0 < driver.engine.stats.generation_tokens < 10_000


async def test_a_job_that_never_fits_is_refused_at_once(driver: Driver) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        driver.submit([job(0, 0)])
