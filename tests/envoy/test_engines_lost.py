"""Engines that refuse, fail and die behind Envoy: the next one answers, and the picker knows which it was."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.commands.envoy.wanted import Mode
from simulator.faults import FaultKind
from tests.envoy.lab import CHAT, SUBSET, Lab, lab
from tests.envoy.test_modes import settled
from tests.envoy.versions import NEWEST, OLDEST
from tests.support.chat import chat

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def listed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    """Three engines, of which the picker names two for each request; it does not notice a dead one by itself soon."""
    unhurried = {"scrape": {"interval": 600, "timeout": 20}, "health": {"failures": 10, "slow_start": 0}}
    async with lab(tmp_path_factory.mktemp("listed"), engines=3, epp={"fallbacks": 1}, fleet=unhurried) as made:
        yield made


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def mended(listed: Lab) -> AsyncIterator[None]:
    yield
    for engine in listed.engines:
        engine.faults.clear()


async def chosen(made: Lab, group: int, front) -> int:
    """The engine that holds a chat of this group from now on."""
    before = made.served()
    assert (await front.post(chat(group=group, words=2000))).status_code == 200
    return [now - then for now, then in zip(made.served(), before, strict=True)].index(1)


@pytest.mark.parametrize("version", [NEWEST, OLDEST])
@pytest.mark.parametrize("mode", [Mode.ENDS, Mode.FULL])
async def test_the_next_of_the_list_answers_where_the_first_refuses(mode, version, listed: Lab) -> None:
    front = await listed.envoy(mode, version=version)
    group = 100 + len(listed.fronts)
    first = await chosen(listed, group, front)
    before = listed.served()
    listed.engines[first].faults.inject(FaultKind.REFUSE)
    answer = await front.post(chat(group=group, words=2000))
    assert answer.status_code == 200, answer.text
    grown = [now - then for now, then in zip(listed.served(), before, strict=True)]
    assert sum(grown) == 1
    assert grown[first] == 0
    decision = await settled(listed, answer)
    assert decision["plan"]["decode"] == listed.addresses[grown.index(1)], "booked where it was served"
    await listed.nothing_is_booked()


@pytest.mark.parametrize("mode", [Mode.ENDS, Mode.REQUEST])
async def test_another_answers_where_the_first_says_503(mode, listed: Lab) -> None:
    front = await listed.envoy(mode)
    group = 200 + len(listed.fronts)
    first = await chosen(listed, group, front)
    listed.engines[first].faults.inject(FaultKind.STATUS, status=503, times=1)
    before = listed.served()
    answer = await front.post(chat(group=group, words=2000))
    assert answer.status_code == 200
    grown = [now - then for now, then in zip(listed.served(), before, strict=True)]
    assert grown[first] == 1
    assert sum(grown) == 2
    await listed.nothing_is_booked()


async def test_an_engine_that_breaks_off_before_it_answers_costs_no_request(listed: Lab) -> None:
    front = await listed.envoy()
    first = await chosen(listed, 300, front)
    listed.engines[first].faults.inject(FaultKind.DROP, times=1)
    assert (await front.post(chat(group=300, words=2000))).status_code == 200
    await listed.nothing_is_booked()


async def test_where_all_refuse_the_client_hears_it_and_nothing_stays_booked(listed: Lab) -> None:
    front = await listed.envoy()
    for engine in listed.engines:
        engine.faults.inject(FaultKind.STATUS, status=503)
    answer = await front.post(chat(group=301))
    assert answer.status_code == 503
    await listed.nothing_is_booked()


async def test_a_stream_that_breaks_off_ends_its_booking(listed: Lab) -> None:
    front = await listed.envoy(Mode.FULL)
    for engine in listed.engines:
        engine.faults.inject(FaultKind.CLOSE_AFTER, events=3)
    url = front.url + CHAT
    with pytest.raises(Exception, match=r"peer closed|incomplete"):
        async with front.client.stream(
            "POST", url, json=chat(group=302, words=2000, stream=True, max_tokens=99)
        ) as answer:
            async for _ in answer.aiter_raw():
                pass
    await listed.nothing_is_booked()


async def test_the_engines_that_a_list_may_name_keep_to_the_subset(listed: Lab) -> None:
    front = await listed.envoy()
    two = ",".join(listed.addresses[:2])
    listed.engines[0].faults.inject(FaultKind.STATUS, status=503)
    before = listed.served()
    for question in range(6):
        answer = await front.post(chat(group=303, question=question), **{SUBSET: two})
        assert answer.status_code == 200
    assert listed.served()[2] == before[2]
    assert listed.served()[1] == before[1] + 6
