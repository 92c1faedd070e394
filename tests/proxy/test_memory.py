"""One budget for what is held: nothing is counted twice or left behind, nobody waits for ever, and who came first is
served first."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Exhausted
from gateway.proxy.memory import LARGE, Memory, Share
from gateway.proxy.settings import ListenSettings
from tests.support.chat import CHAT, COMPLETE, ROLE, STREAMED, WORD
from tests.support.gateway import config_for, running
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wait import eventually
from tests.support.wire import STREAM_HEAD, answer, chunked, raw_client, raw_post

KIB = 1024
LIMIT = 400 * KIB
TIGHT = ListenSettings(max_body=250 * KIB, max_held=LIMIT)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.proxy.memory.PATIENCE", 0.05)


async def growing(share: Share, size: int) -> asyncio.Task[None]:
    task = asyncio.create_task(share.grown(size))
    await asyncio.sleep(0)
    return task


async def test_who_waits_is_let_in_by_age_as_others_give_back():
    memory = Memory(1000)
    first, second, third = (Share(memory) for _ in range(3))
    await first.grown(700)
    late, early = await growing(third, 600), await growing(second, 600)
    assert (memory.waiting, memory.held) == (2, 700)
    first.release()
    await early
    assert not late.done()
    second.release()
    await late
    assert (memory.waiting, memory.held, third.size) == (0, 600, 600)


async def test_what_stands_by_leaves_half_to_the_others():
    memory = Memory(1000)
    shares = [Share(memory) for _ in range(3)]
    for share, size in zip(shares, (300, 201, 200), strict=True):
        share.take(size)
    with shares[0].standing_by():
        with pytest.raises(Exhausted, match="wait for an endpoint"), shares[1].standing_by():
            pass
        with shares[2].standing_by():
            assert (memory.standing_by, memory.held) == (500, 701)
    assert memory.standing_by == 0
    large = Share(memory)
    large.take(290)
    large.keep(300)
    with large.standing_by():
        assert memory.standing_by == 590, "one may, whatever its size"


async def test_what_waits_for_one_another_is_resolved_by_refusing_the_newest():
    memory = Memory(1000)
    old, new = Share(memory), Share(memory)
    await old.grown(350)
    await new.grown(350)
    going = await growing(old, 350)
    assert not going.done(), "the other may go on, and give back"
    with pytest.raises(Exhausted) as raised:
        await new.grown(350)
    assert raised.value.retry_after
    new.release()
    await going
    assert memory.held == old.size == 700


async def test_where_nobody_gives_back_the_newest_is_refused_after_a_while(quick):
    memory = Memory(1000)
    idle, old, new = (Share(memory) for _ in range(3))
    idle.take(500)
    await old.grown(100)
    await new.grown(100)
    waits = [await growing(old, 150), await growing(new, 100)]
    with pytest.raises(Exhausted):
        await waits[1]
    new.release()
    await waits[0]
    assert memory.held == 750


async def test_any_number_of_those_that_wait_is_told_at_once_though_each_asks_again():
    memory = Memory(10_000)
    told: list[int] = []
    waiting = [Share(memory) for _ in range(2_000)]
    big = Share(memory)
    big.take(10_000)

    def again(share: Share) -> None:
        told.append(share.number)
        if share.grow(1, lambda _: told.append(share.number)):
            told.append(share.number)  # nobody else waits

    for share in waiting:
        assert not share.grow(1, lambda _, share=share: again(share))
    big.release()
    assert told == sorted(told) == sorted([share.number for share in waiting] * 2)
    assert (memory.waiting, memory.held) == (0, 4_000)


async def test_a_body_that_came_with_its_head_has_the_last_quarter_to_itself():
    memory = Memory(1000)
    large, small = Share(memory), Share(memory)
    await large.grown(int(1000 * LARGE))
    small.take(250)
    with pytest.raises(Exhausted):
        Share(memory).take(1)
    large.release()
    small.release()
    small.release()
    assert memory.held == 0


async def test_a_higher_limit_lets_in():
    memory = Memory(100)
    first, second = Share(memory), Share(memory)
    await first.grown(70)
    waits = await growing(second, 70)
    memory.allow(1000)
    await waits


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["take", "keep", "grow", "wait", "cancel", "release", "turn"]),
            st.integers(0, 5),
            st.integers(1, 60),
        ),
        max_size=60,
    )
)
def test_nothing_is_lost_or_given_back_twice(steps: list[tuple[str, int, int]]) -> None:
    async def run() -> None:
        memory = Memory(100)
        shares = [Share(memory) for _ in range(6)]
        waits: dict[Share, asyncio.Task[None]] = {}
        for what, number, size in steps:
            share = shares[number]
            busy = share in waits and not waits[share].done()
            if what == "turn":
                await asyncio.sleep(0)
            elif what == "cancel" and busy:
                waits[share].cancel()
            elif what == "release":
                if busy:
                    waits.pop(share).cancel()
                share.release()
            elif what == "take" and not busy:
                with contextlib.suppress(Exhausted):
                    share.take(size)
            elif what == "keep" and not busy:
                share.keep(size)
            elif what == "wait" and not busy:
                waits[share] = asyncio.create_task(share.grown(size))
            assert memory.held == sum(one.size for one in shares) >= 0
            assert all(one.size >= 0 for one in shares)
        for task in waits.values():
            task.cancel()
        await asyncio.gather(*waits.values(), return_exceptions=True)
        for share in shares:
            share.release()
        assert (memory.held, memory.waiting) == (0, 0)

    asyncio.run(run())


# Through a gateway


LONG = orjson.dumps(CHAT | {"user": "x" * (200 * KIB)})


class Slow:
    """Answers once ``go`` is set, with ``size`` bytes more. ``asked``: requests that have come."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asked = 0
        self.padding = b""

    async def __call__(self, connection, head, body) -> None:
        self.asked += 1
        await self.go.wait()
        if orjson.loads(body).get("stream"):
            await connection.say(STREAM_HEAD + chunked(ROLE, WORD, end=False))
            await connection.gone()
        else:
            await connection.say(answer(COMPLETE[:-1] + self.padding + COMPLETE[-1:]))


@pytest.fixture
async def slow() -> AsyncIterator[Slow]:
    return Slow()


async def test_a_body_waits_until_another_has_gone(slow):
    async with ScriptedEngine(slow) as server, running(config_for(server.url, listen=TIGHT)) as gateway:
        memory = gateway.gateway.memory
        async with raw_client(gateway.url) as one, raw_client(gateway.url) as other, raw_client(gateway.url) as small:
            await one.say(raw_post(LONG))
            await eventually(lambda: slow.asked == 1)
            assert "kvgate_held_bytes 2" in await gateway.metrics()
            await other.say(raw_post(LONG))
            await eventually(lambda: memory.waiting == 1, "it is not read on")
            await small.say(raw_post(orjson.dumps(CHAT)))
            await eventually(lambda: slow.asked == 2, "who says little goes on")
            slow.go.set()
            for client in (one, other, small):
                assert (await client.reply()).status == 200
        assert (memory.held, memory.waiting) == (0, 0)


async def test_half_a_body_each_is_resolved_by_refusing_the_newest(slow, quick):
    slow.go.set()
    whole = raw_post(LONG)
    async with ScriptedEngine(slow) as server, running(config_for(server.url, listen=TIGHT)) as gateway:
        memory = gateway.gateway.memory
        async with raw_client(gateway.url) as old, raw_client(gateway.url) as new:
            for number, client in enumerate((old, new), 1):
                await client.say(whole[: 140 * KIB])
                await eventually(lambda number=number: memory.held >= number * 139 * KIB)
            await old.say(whole[140 * KIB :])
            await new.say(whole[140 * KIB :])
            refused = await new.reply()
            assert (refused.status, refused.header("retry-after")) == (503, "5")
            assert b"listen.max_held" in refused.body
            assert (await old.reply()).status == 200
        assert (memory.held, memory.waiting) == (0, 0)
        assert sorted(line.outcome for line in gateway.lines) == ["exhausted", "ok"]


@pytest.mark.parametrize("phase", ["receiving", "waiting", "placed", "streaming"])
async def test_a_client_that_leaves_gives_back_what_it_held(slow, phase):
    body = orjson.dumps((STREAMED if phase == "streaming" else CHAT) | {"user": "x" * (200 * KIB)})
    async with ScriptedEngine(slow) as server, running(config_for(server.url, listen=TIGHT)) as gateway:
        memory = gateway.gateway.memory
        async with raw_client(gateway.url) as client:
            if phase == "waiting":
                Share(memory).keep(200 * KIB)
            before = memory.held
            await client.say(raw_post(body)[: (100 if phase == "receiving" else 1000) * KIB])
            if phase == "receiving":
                await eventually(lambda: memory.held > 90 * KIB)
            elif phase == "waiting":
                await eventually(lambda: memory.waiting == 1)
            else:
                await eventually(lambda: slow.asked == 1)
                assert memory.held > 200 * KIB
            if phase == "streaming":
                slow.go.set()
                await eventually(lambda: memory.held == before, "its body is of no use once its stream has begun")
        await eventually(lambda: memory.held == before and memory.waiting == 0, "all is given back")
        await eventually(gateway.idle)


async def test_an_answer_that_is_held_whole_waits_for_room(slow):
    """Its engine is not read on meanwhile."""
    slow.padding = b" " * (200 * KIB)
    slow.go.set()
    async with ScriptedEngine(slow) as server, running(config_for(server.url, listen=TIGHT)) as gateway:
        memory = gateway.gateway.memory
        other = Share(memory)
        other.keep(200 * KIB)
        async with raw_client(gateway.url) as client:
            await client.say(raw_post(orjson.dumps(CHAT)))
            await eventually(lambda: memory.waiting == 1, "it waits")
            other.release()
            reply = await client.reply()
        assert reply.status == 200
        assert len(reply.body) == len(COMPLETE) + 200 * KIB
        await eventually(lambda: memory.held == 0)


@pytest.mark.parametrize("leaves", [True, False])
async def test_an_answer_that_finds_no_room_is_refused(slow, monkeypatch, leaves):
    monkeypatch.setattr("gateway.proxy.memory.PATIENCE", 60.0 if leaves else 0.05)
    slow.padding = b" " * (200 * KIB)
    slow.go.set()
    async with ScriptedEngine(slow) as server, running(config_for(server.url, listen=TIGHT)) as gateway:
        memory = gateway.gateway.memory
        Share(memory).keep(200 * KIB)
        async with raw_client(gateway.url) as client:
            await client.say(raw_post(orjson.dumps(CHAT)))
            if leaves:
                await eventually(lambda: memory.waiting == 1)
            else:
                reply = await client.reply()
                assert (reply.status, reply.header("retry-after")) == (503, "5")
        await eventually(lambda: (memory.held, memory.waiting) == (200 * KIB, 0), "nothing of it is left")
        await eventually(gateway.idle)
        assert not gateway.down(server.url), "it is not the engine's fault"


async def test_a_limit_changes_with_the_configuration(slow):
    async with ScriptedEngine(slow) as server, running(config_for(server.url)) as gateway:
        await gateway.reload(config_for(server.url, listen=ListenSettings(max_body=1000, max_held=5000)))
        assert gateway.gateway.memory.limit == 5000


def test_a_budget_has_room_for_a_largest_body() -> None:
    with pytest.raises(ValueError, match="max_held must be at least 4/3 of max_body"):
        ListenSettings(max_body=100, max_held=130)
