"""Covers: gateway/restart/takeover.py, gateway/restart/succession.py, gateway/restart/channel.py,
gateway/restart/again.py, gateway/core/tasks.py.

The two sides of a restart in one process: who gets which socket, and what happens where one side fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator

import pytest

from gateway.errors import ConfigError
from gateway.restart import succession as old_side
from gateway.restart import takeover as new_side
from gateway.restart.again import Again, command_line
from gateway.restart.channel import MOST, Channel, name_of
from gateway.restart.sockets import open_sockets
from gateway.restart.succession import Held, Succession
from gateway.restart.takeover import PREDECESSOR, TakeOver
from tests.support.ports import free_in_a_row
from tests.support.wait import eventually

both_loops = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


class Serving:
    """Serves on one port. ``said``: what it was asked, in order."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening
        self.said: list[str] = []

    def held(self) -> list[Held]:
        return [Held("clients", "127.0.0.1", 0, [self.listening])]

    async def pause(self) -> None:
        self.said.append("pause")

    async def resume(self) -> None:
        self.said.append("resume")

    def gone_to(self, pid: int) -> None:
        self.said.append(f"gone to {pid}")


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[Serving, Succession, int]]:
    (listening,) = open_sockets("127.0.0.1", 0, backlog=8)
    with listening:
        port = listening.getsockname()[1]
        served = Serving(listening)
        succession = Succession(served)
        succession.open(port)
        try:
            yield served, succession, port
        finally:
            await succession.close()


@both_loops
async def test_the_new_one_gets_the_sockets_first_and_the_place_when_it_serves():
    async with serving() as (served, succession, port):
        with TakeOver() as new:
            await new.find(port)
            assert (new.found, served.said) == (True, [])
            assert new.take("admin", "127.0.0.1", port) == new.take("clients", "0.0.0.0", port) == []
            (taken,) = new.take("clients", "127.0.0.1", port)
            assert new.take("clients", "127.0.0.1", port) == [], "once"
            with taken:
                assert taken.getsockname() == served.listening.getsockname()
                with TakeOver() as third, pytest.raises(ConfigError, match=f"process {os.getpid()} is taking over"):
                    await third.find(port)
                await new.stopped()
                assert served.said == ["pause"]
                await new.serving()
        assert served.said == ["pause", f"gone to {os.getpid()}"]
        assert succession.taken.is_set()
        with TakeOver() as fourth:
            await fourth.find(port)
            assert not fourth.found, "its name is free for the next one"


@pytest.mark.parametrize("after_the_stop", [False, True])
async def test_where_the_new_one_fails_the_old_one_goes_on_and_says_why(after_the_stop, caplog):
    async with serving() as (served, succession, port):
        with pytest.raises(ConfigError), TakeOver() as new:
            await new.find(port)
            if after_the_stop:
                await new.stopped()
            raise ConfigError("listen: no such key")
        await eventually(lambda: succession.successor is None)
        assert served.said == (["pause", "resume"] if after_the_stop else [])
        assert f"process {os.getpid()} has not taken over: listen: no such key; this one goes on" in caplog.text
        with TakeOver() as new:  # another one may try
            await new.find(port)
            assert new.found


@both_loops
async def test_one_that_hangs_before_it_serves_loses_the_place_again_and_is_told(monkeypatch, caplog):
    monkeypatch.setattr(old_side, "SERVING", 0.01)
    async with serving() as (served, succession, port):
        with TakeOver() as new:
            await new.find(port)
            await new.stopped()
            await eventually(lambda: succession.successor is None, within=30)
            assert served.said == ["pause", "resume"]
            with pytest.raises(ConfigError, match=f"process {os.getpid()} serves on this port again"):
                await new.serving()
        assert served.said == ["pause", "resume"]
        assert not succession.taken.is_set()
        assert "it has not served within 0.01 s; this one goes on" in caplog.text


@both_loops
async def test_who_holds_the_place_hears_at_once_that_it_is_lost(monkeypatch):
    monkeypatch.setattr(old_side, "SERVING", 0.01)
    async with serving() as (served, _, port):
        with TakeOver() as new:
            await new.find(port)
            await new.stopped()
            with pytest.raises(ConfigError, match=f"process {os.getpid()} serves on this port again"):
                await new.hold(asyncio.Event().wait())
            assert new.give_up("it is late") is True, "the sockets are the old one's"
            assert served.said == ["pause", "resume"]


@both_loops
async def test_who_has_held_the_place_gets_it(caplog):
    async with serving() as (served, succession, port):
        with TakeOver() as new:
            await new.find(port)
            await new.stopped()
            await new.hold(asyncio.sleep(0.01))
            await new.serving()
        assert served.said == ["pause", f"gone to {os.getpid()}"]
    async with serving() as (served, succession, port):
        with TakeOver() as new:
            await new.find(port)
            await new.stopped()
            ended = asyncio.Event()
            holding = asyncio.get_running_loop().create_task(new.hold(ended.wait()))
            await succession.close()
            await eventually(lambda: "has ended: this one serves now" in caplog.text)
            assert not holding.done(), "nobody is there who could take it back"
            ended.set()
            await holding
            assert new.give_up("its workers could not start") is False


async def test_a_word_that_is_there_when_the_time_is_over_counts():
    ours, theirs = (Channel(one) for one in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    theirs.send("serving")
    heard = await ours.receive(0)
    assert heard is not None
    assert heard.say == "serving"
    with pytest.raises(TimeoutError):
        await ours.receive(0)
    theirs.send("unread")
    ours.send("late")
    ours.close()  # the other end hears first that it was reset
    assert theirs.send("serving") is False
    heard = await theirs.receive()
    assert heard is not None
    assert heard.say == "late"
    assert await theirs.receive() is None
    theirs.close()


async def test_one_that_does_not_stop_in_time_goes_on_alone(monkeypatch):
    """Both would serve otherwise: it has the sockets, and goes on where the other end leaves."""
    async with serving() as (served, succession, port):
        go_on = asyncio.Event()

        async def pause() -> None:
            served.said.append("pause")
            await go_on.wait()

        monkeypatch.setattr(served, "pause", pause)
        with pytest.raises(ConfigError, match="does not answer"), TakeOver() as new:
            await new.find(port)
            monkeypatch.setattr(new_side, "ANSWER", 0.01)
            await new.stopped()
        go_on.set()
        await eventually(lambda: succession.successor is None, within=30)
        assert served.said == ["pause", "resume"]


async def test_more_sockets_than_one_message_takes_are_handed_over(monkeypatch):
    async with serving() as (served, _, port):
        many = Held("clients", "127.0.0.1", 0, [served.listening] * (2 * MOST + 20))
        one = Held("admin", "127.0.0.1", 0, [served.listening])
        monkeypatch.setattr(served, "held", lambda: [many, one])
        with TakeOver() as new:
            await new.find(port)
            with contextlib.ExitStack() as taken:
                counts = [
                    len([taken.enter_context(each) for each in new.take(name, "127.0.0.1", port)])
                    for name in ("clients", "admin")
                ]
                assert counts == [2 * MOST + 20, 1]


async def test_one_that_is_told_to_stop_leaves_the_place_to_the_old_one(caplog):
    async with serving() as (served, succession, port):
        with TakeOver() as new:
            assert new.give_up("it was told to stop") is False, "there is none"
            await new.find(port)
            await new.stopped()
            assert new.give_up("it was told to stop") is True, "the sockets are the old one's"
            await eventually(lambda: succession.successor is None, within=30)
        assert served.said == ["pause", "resume"]
        assert "has not taken over: it was told to stop" in caplog.text


async def test_one_that_fails_before_it_asks_says_why(caplog):
    async with serving() as (served, succession, _):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with pytest.raises(ConfigError), TakeOver({PREDECESSOR: str(theirs.detach())}):
            raise ConfigError("no such file")
        assert await succession.talk(Channel(ours)) is False
        assert "has not taken over: no such file; this one goes on" in caplog.text
        assert served.said == []


async def test_where_the_old_one_dies_meanwhile_the_new_one_serves():
    async with serving() as (_, succession, port):
        with TakeOver() as new:
            await new.find(port)
            await succession.close()
            await new.stopped()
            await new.serving()
            assert new.found


async def test_an_old_one_that_does_not_answer_is_an_error(monkeypatch):
    monkeypatch.setattr(new_side, "ANSWER", 0.01)
    port = free_in_a_row()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as deaf:
        deaf.bind(name_of(port))
        deaf.listen()
        with TakeOver() as new, pytest.raises(ConfigError, match="does not answer"):
            await new.find(port)


async def test_what_comes_beside_a_message_and_is_no_socket_is_closed(tmp_path):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with (tmp_path / "file").open("wb") as file, theirs:
        channel = Channel(ours)
        before = len(os.listdir("/proc/self/fd"))
        socket.send_fds(theirs, [b'{"say": "hello"}'], [file.fileno(), theirs.fileno()])
        message = await channel.receive(30)
        assert message is not None
        assert message.say == "hello"
        assert (len(channel.received), len(os.listdir("/proc/self/fd"))) == (1, before + 1)
        channel.close()
        assert len(os.listdir("/proc/self/fd")) == before - 1


@pytest.mark.parametrize("side", [old_side, new_side])
async def test_nothing_is_said_to_or_heard_from_another_user(monkeypatch, side):
    async with serving() as (served, succession, port):
        monkeypatch.setattr(side, "user_of", lambda connected: os.getuid() + 1)
        with TakeOver() as new:
            await new.find(port)
            assert not new.found
        assert succession.successor is None
        assert served.said == []


@pytest.mark.parametrize("packet", [b"", b"{", b'{"say": 5}', b"\xff" * 100, b'{"say": "serving"}'])
async def test_what_is_no_message_ends_the_talk(packet):
    async with serving() as (served, succession, port):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as strange:
            strange.connect(name_of(port))
            strange.send(packet)
            strange.settimeout(30)
            assert await asyncio.to_thread(strange.recv, 100) == b""
        assert served.said == []
        assert succession.successor is None


async def test_a_name_that_another_process_holds_is_logged(caplog):
    async with serving() as (served, _, port):
        second = Succession(served)
        second.open(port)
        assert f"cannot take over from this one on port {port}: Address already in use" in caplog.text
        await second.close()


async def test_a_process_that_was_started_to_take_over_is_told_where():
    async with serving() as (_, succession, _):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        talk = asyncio.get_running_loop().create_task(succession.talk(Channel(ours)))
        environ = {PREDECESSOR: str(theirs.detach()), "HOME": "/"}
        with TakeOver(environ) as new:
            assert environ == {"HOME": "/"}
            await new.find(1)
            (taken,) = new.take("clients", "127.0.0.1", 0)  # as it is configured
            taken.close()
            await new.serving()
        assert await talk is True


async def test_what_cannot_be_started_again_leaves_all_as_it_is(monkeypatch, caplog):
    async with serving() as (served, succession, _):
        again = Again(succession, {})
        monkeypatch.setattr("sys.executable", "/nowhere/python")
        monkeypatch.setattr("sys.orig_argv", ["python", "-m", "gateway.cli"])
        again.request()
        again.request()
        assert "is taking over already" in caplog.text
        await eventually(lambda: "/nowhere/python cannot be started" in caplog.text)
        monkeypatch.setattr("os.getpid", lambda: 1)
        again.request()
        assert "the first process of a container cannot be replaced" in caplog.text
        await again.close()
        assert served.said == []


def test_the_command_line_follows_a_script_to_another_interpreter(tmp_path):
    script = tmp_path / "kvgate"
    script.write_text("#!/bin/sh\n")
    assert command_line("/v/python", ["python", str(script), "serve"]) == ["/v/python", str(script), "serve"]
    script.chmod(0o755)
    assert command_line("/v/python", ["python", str(script), "serve"]) == [str(script), "serve"]
    assert command_line("/v/python", ["p", "-m", "gateway.cli", "serve"]) == ["/v/python", "-m", "gateway.cli", "serve"]
