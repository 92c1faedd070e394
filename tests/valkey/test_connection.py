"""One connection to a real server, also over TLS, and what is made of what no server would send."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from gateway.valkey import connection as module
from gateway.valkey.client import Away, Refused
from gateway.valkey.connection import Connection
from tests.support.tls import Authority
from tests.support.valkey import needs_valkey, valkey
from tests.support.wait import eventually

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


class Asking:
    """A connection, and what was heard over it."""

    def __init__(self) -> None:
        self.heard: list[tuple[bytes, bytes]] = []
        self.answered = 0
        self.connection = Connection(lambda channel, data: self.heard.append((channel, data)), self._count)

    def _count(self) -> None:
        self.answered += 1

    def ask(self, *commands: bytes) -> list[asyncio.Future]:
        loop = asyncio.get_running_loop()
        answers = [loop.create_future() for _ in commands]
        self.connection.send((command + b"\r\n", answer) for command, answer in zip(commands, answers, strict=True))
        return answers


@needs_valkey
@pytest.mark.parametrize("new_loop", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_it_asks_and_hears_over_one_socket(tmp_path, new_loop, tls):
    """The transport is taken from redis-py's connection, which has it where ``_transport_of`` looks for it."""

    async def all_of_it() -> None:
        async with valkey(tmp_path) as server:
            if tls:
                authority = Authority(tmp_path)
                await server.stop()
                server.speak_tls(*authority.issue("valkey"), authority.file)
                await server.start()
            asking = Asking()
            await asking.connection.open(server.settings.url)
            answers = asking.ask(b"HELLO 3", b"SUBSCRIBE news", b"PUBLISH news one", b"NONSENSE", b"GET a")
            done = await asyncio.gather(*answers, return_exceptions=True)
            assert done[0][b"proto"] == 3
            assert done[2] == 1
            assert isinstance(done[3], Refused)
            assert "NONSENSE" in str(done[3])
            assert done[4] is None
            assert asking.heard == [(b"news", b"one")]
            assert not asking.connection.is_busy
            assert asking.answered >= 1
            await asking.connection.leave()
            await asking.connection.leave()
            with pytest.raises(Away):
                await asking.ask(b"GET a")[0]

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(all_of_it())


@needs_valkey
async def test_a_full_buffer_is_taken_a_part_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "AT_ONCE", 4)
    async with valkey(tmp_path) as server:
        asking = Asking()
        await asking.connection.open(server.settings.url)
        answers = asking.ask(*(b"INCR n" for _ in range(50)))
        between = 0
        while not answers[-1].done():
            between += any(answer.done() for answer in answers)
            await asyncio.sleep(0)
        assert between >= 5, "the loop did other things between"
        assert [answer.result() for answer in answers] == list(range(1, 51))
        await asking.connection.leave()


@needs_valkey
async def test_the_end_is_told_to_all_who_wait(tmp_path):
    async with valkey(tmp_path) as server:
        asking = Asking()
        await asking.connection.open(server.settings.url)
        server.pause()
        answers = asking.ask(b"GET a", b"GET b")
        answers[0].cancel()
        await server.stop()
        with pytest.raises(Away):
            await answers[1]
        await eventually(asking.connection.ended.done, within=30.0)
        assert asking.connection.ended.result()
        await asking.connection.leave()


async def test_what_is_no_answer_ends_it():
    asking = Asking()
    transport = Unreadable()
    asking.connection._transport = transport
    asking.connection.data_received(b"+nobody asked\r\n")
    assert not asking.connection.ended.done()
    asking.connection.data_received(b"garbage\r\n")
    assert "no answer" in asking.connection.ended.result()
    assert transport.aborted


class Unreadable(asyncio.Transport):
    aborted = False

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def resume_reading(self) -> None:
        pass
