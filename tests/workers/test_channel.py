from __future__ import annotations

import socket

import pytest

from gateway.workers.channel import Channel
from tests.support.wait import eventually


class End:
    def __init__(self, end: socket.socket) -> None:
        self.heard: list[str] = []
        self.ends = 0
        self.channel = Channel(end, self.heard.append, self._ended)

    def _ended(self) -> None:
        self.ends += 1


@pytest.fixture
async def ends():
    one, two = map(End, socket.socketpair())
    yield one, two
    one.channel.close()
    two.channel.close()


async def test_words_come_whole_and_in_order(ends) -> None:
    one, two = ends
    one.channel.say("before")  # the other listens
    two.channel.open()
    one.channel.open()
    for word in ("go", "beat"):
        one.channel.say(word)
    two.channel.say("hello")
    await eventually(lambda: two.heard == ["before", "go", "beat"] and one.heard == ["hello"])


async def test_the_end_of_the_other_is_heard_once_after_all_that_it_said(ends) -> None:
    one, two = ends
    two.channel.open()
    one.channel.say("last")
    one.channel.close()
    await eventually(lambda: two.ends == 1)
    assert two.heard == ["last"]
    two.channel.read()
    two.channel.say("to nobody")
    assert two.ends == 1


async def test_one_that_does_not_read_stops_nobody(ends) -> None:
    one, two = ends
    for _ in range(100_000):
        one.channel.say("beat")
    two.channel.open()
    two.channel.read()
    assert set(two.heard) == {"beat"}
    assert 0 < len(two.heard) < 100_000
