"""Mooncake: a transfer's name on both legs, and the prefill engine's id from its bootstrap server."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import orjson
import pytest

from gateway.framework import Kind
from gateway.proxy.serving.connectors.mooncake import FAILED_FOR, KNOWN_FOR, Mooncake
from gateway.proxy.serving.handover_failures import HandoverCause, HandoverFailed
from tests.support.chat import CHAT
from tests.support.gateway import PATIENT, SOON
from tests.support.split import decodes, pair, prefills
from tests.support.wait import eventually
from tests.support.wire import Connection, ScriptedServer

ONE = {"0": {"engine_id": "e0", "worker_addr": {"0": {"0": "tcp://p:1"}}}}
TWO = {**ONE, "1": {"engine_id": "e1", "worker_addr": {}}}


class Bootstrap:
    """Answers ``said`` to every question, and keeps them. ``speaks``: cleared, it answers nothing. ``left``: questions
    that were taken back."""

    def __init__(self, said: object) -> None:
        self.said = said
        self.asked: list[str] = []
        self.left = 0
        self.time = 0.0
        self.speaks = asyncio.Event()
        self.speaks.set()

    async def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        try:
            await self.speaks.wait()
        except asyncio.CancelledError:
            self.left += 1
            raise
        if isinstance(self.said, Exception):
            raise self.said
        return self.said if isinstance(self.said, bytes) else orjson.dumps(self.said)

    @property
    def connector(self) -> Mooncake:
        return Mooncake(self.fetch, lambda: self.time)


async def test_the_two_legs(make_pair, make_body, read):
    server = Bootstrap(ONE)
    transfer = await server.connector.open(make_pair())
    body = make_body(messages=[], stream=True, stop=["x"], stop_token_ids=[3])
    prefill, decode = read(transfer.prefill(body)), read(transfer.decode(body, b""))
    name = prefill["kv_transfer_params"].pop("transfer_id")
    assert prefill["kv_transfer_params"] == {"do_remote_decode": True, "do_remote_prefill": False}
    assert prefill["ignore_eos"] is True, "a prefill that ends by anything but its length is not sent on"
    assert "stop" not in prefill
    assert "stop_token_ids" not in prefill
    assert decode == {
        **read(body),
        "kv_transfer_params": {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "transfer_id": name,
            "remote_engine_id": "e0",
            "remote_bootstrap_addr": "http://p.example:8998",
        },
    }
    assert server.asked == ["http://p.example:8998/query"]


async def test_each_rank_has_its_own_id(make_pair, make_body, read):
    connector = Bootstrap(TWO).connector
    for rank, name in ((0, "e0"), (1, "e1")):
        transfer = await connector.open(make_pair(rank=rank))
        assert read(transfer.decode(make_body(), b""))["kv_transfer_params"]["remote_engine_id"] == name


async def test_a_rank_that_cannot_be_told(make_pair):
    connector = Bootstrap(TWO).connector
    for rank in (None, 2):
        with pytest.raises(HandoverFailed, match="rank"):
            await connector.open(make_pair(rank=rank))


async def test_ids_are_remembered_for_a_while_and_asked_again_after_a_restart(make_pair):
    server = Bootstrap(ONE)
    connector, pair = server.connector, make_pair()
    await connector.open(pair)
    await connector.open(pair)
    assert len(server.asked) == 1
    pair.prefill.engine.started = 2.0
    await connector.open(pair)
    assert len(server.asked) == 2
    server.time += KNOWN_FOR + 1
    await connector.open(pair)
    assert len(server.asked) == 3


class TestManyAsk:
    """One server, at once."""

    @asynccontextmanager
    async def opening(self, server, connector, pair, count=3):
        """Requests that wait for a server that is silent for now."""
        server.speaks.clear()
        asked = len(server.asked)
        tasks = [asyncio.create_task(connector.open(pair)) for _ in range(count)]
        await eventually(lambda: len(server.asked) > asked, "the server is asked")
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def test_it_is_asked_once_for_all_of_them(self, make_pair, make_body, read):
        server = Bootstrap(ONE)
        connector, pair = server.connector, make_pair()
        for expected in (1, 2):
            async with self.opening(server, connector, pair) as tasks:
                server.speaks.set()
                legs = [read((await task).decode(make_body(), b""))["kv_transfer_params"] for task in tasks]
            assert {leg["remote_engine_id"] for leg in legs} == {"e0"}
            assert len({leg["transfer_id"] for leg in legs}) == len(tasks)
            assert len(server.asked) == expected
            server.time += KNOWN_FOR

    async def test_each_server_is_asked_for_itself(self, make_pair):
        server = Bootstrap(ONE)
        connector = server.connector
        async with self.opening(server, connector, make_pair(), 1):
            async with self.opening(server, connector, make_pair(url="http://q.example:8000"), 1):
                pass
        assert server.asked == ["http://p.example:8998/query", "http://q.example:8998/query"]

    async def test_who_leaves_does_not_end_it_for_the_others(self, make_pair):
        server = Bootstrap(ONE)
        async with self.opening(server, server.connector, make_pair()) as tasks:
            for gone in (tasks[0], tasks[2]):  # the first is who had it asked
                gone.cancel()
                await asyncio.gather(gone, return_exceptions=True)
            server.speaks.set()
            await tasks[1]
            assert tasks[0].cancelled()
        assert (len(server.asked), server.left) == (1, 0)

    async def test_the_last_to_leave_ends_it_and_the_next_asks_anew(self, make_pair):
        server = Bootstrap(ONE)
        connector, pair = server.connector, make_pair()
        async with self.opening(server, connector, pair) as tasks:
            for task in tasks:
                task.cancel()
            # It comes before the question knows that nobody wants it any more.
            late = asyncio.create_task(connector.open(pair))
            await asyncio.gather(*tasks, return_exceptions=True)
            await eventually(lambda: server.left == 1 and len(server.asked) == 2, "it is taken back, and asked anew")
            server.speaks.set()
            await late

    async def test_a_restart_meanwhile_is_asked_for_itself(self, make_pair, make_body, read):
        server = Bootstrap(ONE)
        connector, pair = server.connector, make_pair()
        async with self.opening(server, connector, pair, 1):
            pair.prefill.engine.started = 2.0
            server.said = {"0": {"engine_id": "new"}}
            async with self.opening(server, connector, pair, 1) as tasks:
                server.speaks.set()
                leg = read((await tasks[0]).decode(make_body(), b""))
        assert leg["kv_transfer_params"]["remote_engine_id"] == "new"
        assert len(server.asked) == 2

    @pytest.mark.parametrize(
        "said", [HandoverFailed(HandoverCause.BOOTSTRAP, "refused"), b"[]"], ids=["silent", "malformed"]
    )
    async def test_a_failure_is_all_of_theirs_and_is_remembered_for_a_while(self, make_pair, said):
        server = Bootstrap(said)
        connector, pair = server.connector, make_pair()
        async with self.opening(server, connector, pair) as tasks:
            server.speaks.set()
            failures = await asyncio.gather(*tasks, return_exceptions=True)
        assert len({id(failure) for failure in failures}) == len(tasks), "each has a traceback of its own"
        server.time += FAILED_FOR / 2
        with pytest.raises(HandoverFailed) as again:
            await connector.open(pair)
        assert {(failure.cause, failure.detail) for failure in failures} == {(again.value.cause, again.value.detail)}
        assert again.value.cause == "bootstrap"
        assert len(server.asked) == 1
        server.time += FAILED_FOR / 2
        server.said = ONE
        await connector.open(pair)
        assert len(server.asked) == 2

    async def test_while_one_asks_after_a_failure_the_others_do_not_wait(self, make_pair):
        server = Bootstrap(HandoverFailed(HandoverCause.BOOTSTRAP, "silent"))
        connector, pair = server.connector, make_pair()
        with pytest.raises(HandoverFailed):
            await connector.open(pair)
        server.time += FAILED_FOR
        async with self.opening(server, connector, pair, 1) as tasks:
            with pytest.raises(HandoverFailed, match="silent"):
                await connector.open(pair)
            assert not tasks[0].done()
            server.said = ONE
            server.speaks.set()
            await tasks[0]
            await connector.open(pair)
        assert len(server.asked) == 2

    async def test_a_restart_forgets_a_failure(self, make_pair):
        server = Bootstrap(HandoverFailed(HandoverCause.BOOTSTRAP, "refused"))
        connector, pair = server.connector, make_pair()
        with pytest.raises(HandoverFailed):
            await connector.open(pair)
        server.said, pair.prefill.engine.started = ONE, 2.0
        async with self.opening(server, connector, pair, 2) as tasks:
            server.speaks.set()
            await asyncio.gather(*tasks)
        assert len(server.asked) == 2


async def test_a_silent_server_is_asked_once_by_many_requests_which_are_answered_all_the_same():
    asked = []

    async def hears(connection: Connection) -> None:
        asked.append(await connection.request())
        await connection.gone()

    async with ScriptedServer(hears) as server:
        options = {"connector": "mooncake", "bootstrap_port": server.port, "timeouts": replace(PATIENT, connect=SOON)}
        async with pair(prefills, decodes, **options) as setting:
            replies = await asyncio.gather(*(setting.ask(CHAT) for _ in range(8)))
            assert [status for status, _ in replies] == [200] * 8
            assert setting.decode.with_parameters == [False] * 8
            assert (len(asked), setting.prefill.bodies) == (1, [])


@pytest.mark.parametrize("said", [b"", b"[]", b"{}", b'{"0": {}}', b'{"0": {"engine_id": 5}}', b'{"0": 1}', b"\xff"])
async def test_what_is_no_answer(said, make_pair):
    with pytest.raises(HandoverFailed) as failure:
        await Bootstrap(said).connector.open(make_pair())
    assert failure.value.cause == "bootstrap"


async def test_nobody_answers(make_pair):
    with pytest.raises(HandoverFailed):
        await Bootstrap(HandoverFailed(HandoverCause.BOOTSTRAP, "refused")).connector.open(make_pair())


async def test_an_ipv6_address_is_bracketed(make_pair, make_body, read):
    server = Bootstrap(ONE)
    await server.connector.open(make_pair(Kind.CHAT, "http://[fd00::1]:8000"))
    assert server.asked == ["http://[fd00::1]:8998/query"]
