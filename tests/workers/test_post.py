from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys

import pytest

from gateway import __version__
from gateway.cli import main
from gateway.errors import ConfigError
from gateway.sharing.seat import VARIABLE, Seat
from gateway.workers import words
from gateway.workers.channel import Channel
from gateway.workers.post import CONFIG, PARENT, WANTED, Post, digest, left_figures
from tests.support.wait import eventually

LEAVES = """
import asyncio, os, socket, sys
from gateway.sharing.seat import Seat
from gateway.workers.post import Post, left_figures

async def render():
    return text, "text/plain"

post = Post(Seat(0, 2, sys.argv[1]), socket.socketpair()[0])
text = f"kvgate_pid {os.getpid()} ".encode() * 10_000
for turn in range(100):
    asyncio.run(post.leave(render))
    assert left_figures(sys.argv[1], os.getpid()).read_bytes() == text
"""
"""A process that leaves its last metrics again and again."""


class Parent:
    """The other end of a worker's channel."""

    def __init__(self, folder) -> None:
        ours, theirs = socket.socketpair()
        self.heard: list[str] = []
        self.channel = Channel(ours, self.heard.append, lambda: None)
        self.end = theirs
        self.post = Post(Seat(0, 2, str(folder)), theirs)
        self.stop, self.hurry = asyncio.Event(), asyncio.Event()

    def said(self, word: str) -> bool:
        return word in self.heard


@pytest.fixture
async def parent(tmp_path):
    parent = Parent(tmp_path)
    parent.channel.open()
    parent.post.open(parent.stop, parent.hurry)
    yield parent
    parent.post.close()
    parent.channel.close()


async def test_it_beats_and_waits_for_the_word(parent, tmp_path) -> None:
    (tmp_path / CONFIG).write_text("models: []")
    assert parent.post.read_text() == "models: []"
    going = asyncio.ensure_future(parent.post.may_serve())
    await eventually(lambda: parent.said(f"{words.READY}-{digest('models: []')}"))
    assert not going.done()
    parent.channel.say(words.GO)
    await going
    parent.post.serving()
    await eventually(lambda: parent.said(words.SERVING) and parent.heard.count(words.BEAT) >= 3)
    # From now on it reads what is to be.
    (tmp_path / WANTED).write_text("wanted")
    assert parent.post.read_text() == "wanted"


async def test_it_ends_and_hurries_at_a_word(parent) -> None:
    parent.channel.say("a word of a later version")
    parent.channel.say(words.STOP)
    await parent.stop.wait()
    assert not parent.hurry.is_set()
    parent.channel.say(words.HURRY)
    await parent.hurry.wait()


async def test_it_ends_when_its_parent_is_gone(parent) -> None:
    parent.channel.close()
    await parent.stop.wait()


async def test_it_covers_others_at_a_word(tmp_path) -> None:
    parent = Parent(tmp_path)
    with socket.socket() as own, socket.socket() as other, socket.socket() as third:
        ports = [[own.fileno()], [other.fileno(), third.fileno()]]
        parent.post = Post(parent.post.seat, parent.end, ports)
        parent.channel.open()
        parent.post.open(parent.stop, parent.hurry)
        parent.channel.say(f"{words.COVER}-1")
        parent.channel.say(f"{words.UNCOVER}-1")
        assert [await parent.post.cover_asked() for _ in range(2)] == [(1, True), (1, False)]
        for number, count in ((None, 1), (1, 2)):
            copies = parent.post.listening(number)
            assert len(copies) == count
            for copy in copies:
                copy.close()
    parent.post.close()
    parent.channel.close()


async def test_it_says_that_it_leaves_and_has_no_socket_for_clients_any_more(tmp_path) -> None:
    parent = Parent(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as kept:
        own = os.dup(kept.fileno())
        parent.post = Post(parent.post.seat, parent.end, [[own], [own]])  # both have one, of a service manager
        parent.channel.open()
        parent.post.open(parent.stop, parent.hurry)
        parent.post.leaving()
        await eventually(lambda: parent.said(words.LEAVING))
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(own)
        assert parent.post.listening(1) == [], "it covers nobody"
    parent.post.close()
    parent.channel.close()


async def test_a_patient_stop_is_followed_by_another(parent) -> None:
    parent.channel.say(f"{words.STOP}-{words.PATIENT}")
    await parent.stop.wait()
    assert not parent.post.patience_over.is_set()
    parent.channel.say(f"{words.STOP}-{words.KEPT}-{words.TAKEN}")
    await parent.post.patience_over.wait()
    assert parent.post.told == {words.KEPT, words.TAKEN}


async def test_it_leaves_its_last_metrics(parent, tmp_path) -> None:
    async def render() -> tuple[bytes, str]:
        return b"kvgate_x 1\n", "text/plain"

    await parent.post.leave(render)
    assert left_figures(tmp_path, os.getpid()).read_text() == "kvgate_x 1\n"
    assert len(list(tmp_path.iterdir())) == 1
    lost = Parent(tmp_path / "gone")
    await lost.post.leave(render)  # its parent has ended before it
    lost.post.close()
    lost.channel.close()


def test_workers_that_end_at_the_same_time_leave_each_its_own_metrics(tmp_path) -> None:
    both = [subprocess.Popen((sys.executable, "-c", LEAVES, str(tmp_path))) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]


def test_who_has_no_seat_has_no_parent(tmp_path) -> None:
    assert Post.from_environment({}) is None
    environ = Seat(0, 2, str(tmp_path), version=__version__).to_environment()
    with pytest.raises(ConfigError, match="without its parent"):
        Post.from_environment(environ)
    with pytest.raises(ConfigError, match="KVGATE_SEAT is not a worker's seat"):
        Post.from_environment({"KVGATE_SEAT": "{"})
    reading, writing = os.pipe()
    with pytest.raises(ConfigError, match="without its parent"):
        Post.from_environment({**environ, PARENT: str(reading)})  # another thing by now
    with contextlib.suppress(OSError):
        os.close(reading)
    os.close(writing)


def test_a_worker_of_another_version_than_its_parent_does_nothing(tmp_path, monkeypatch, capsys) -> None:
    seat = Seat(0, 2, str(tmp_path), version="0.0.9")
    monkeypatch.setenv(VARIABLE, seat.to_environment()[VARIABLE])
    assert main(["serve", "plugins.yaml"]) == words.OTHER_VERSION
    assert f"this is kvgate {__version__}, and its parent is kvgate 0.0.9" in capsys.readouterr().err
