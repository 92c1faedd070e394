"""Covers: gateway/sharing/siblings.py, gateway/sharing/worker_sockets.py, gateway/sharing/link.py.

Workers of one host among each other, over real Unix sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys

import pytest

from gateway.core.clock import SystemClock
from gateway.core.observer import NULL_OBSERVER
from gateway.errors import ConfigError
from gateway.sharing import link as link_module
from gateway.sharing.link import LENGTH, MAX_FRAME, frame
from gateway.sharing.seat import Seat
from gateway.sharing.siblings import Siblings
from gateway.sharing.worker_sockets import socket_name
from tests.support.wait import eventually

ALL = frozenset((0, 1, 2))


@pytest.fixture
def path(directory):
    """Where the worker of the lowest number listens."""
    opened = os.open(directory, os.O_PATH)
    yield f"/proc/self/fd/{opened}/{socket_name(0)}"
    os.close(opened)


async def test_all_find_each_other_and_the_lowest_leads(workers):
    last = await workers(2)
    assert last.siblings.is_lead
    first = await workers(0)
    # Who starts knows whom it found, whatever the order of the numbers.
    assert first.siblings.live == {0, 2}
    middle = await workers(1)
    assert middle.siblings.live == ALL
    await eventually(lambda: all(worker.siblings.live == ALL for worker in (first, last)), within=30)
    assert [worker.siblings.lead for worker in (first, middle, last)] == [0, 0, 0]
    assert [worker.siblings.is_lead for worker in (first, middle, last)] == [True, False, False]
    assert [(set(change.joined), set(change.left), change.lead) for change in last.changes] == [
        ({0}, set(), True),
        ({1}, set(), False),
    ]


async def test_messages_come_in_order_and_who_is_alone_tells_nobody(workers):
    first = await workers(0)
    first.siblings.tell("t", b"lost")
    assert not first.siblings.tell_one(1, "t", b"lost")
    second, third = await workers(1), await workers(2)
    await eventually(lambda: first.siblings.live == ALL, within=30)
    for number in range(100):
        first.siblings.tell("t", b"%d" % number)
    assert first.siblings.tell_one(2, "t", b"only")
    third.siblings.tell("t", bytes(3_000_000))
    await eventually(lambda: len(second.heard) == 101 and len(third.heard) == 101, within=30)
    assert [said for said in second.heard if said[0] == 0] == [(0, b"%d" % number) for number in range(100)]
    assert third.heard[-1] == (0, b"only")
    assert first.heard == [(2, bytes(3_000_000))]


async def test_one_turns_messages_are_written_together(workers, monkeypatch):
    first, second = await workers(0, 2), await workers(1, 2)
    await eventually(lambda: first.siblings.live == {0, 1}, within=30)
    flushed = []
    flush = link_module.Link.flush
    monkeypatch.setattr(link_module.Link, "flush", lambda link: (flushed.append(link), flush(link)))
    for _ in range(50):
        first.siblings.tell("t", b"x")
    await eventually(lambda: len(second.heard) == 50, within=30)
    assert len(flushed) == 1


async def test_when_the_lead_leaves_the_next_one_knows_at_once_and_hands_it_back(workers):
    first, second, third = await workers(0), await workers(1), await workers(2)
    await first.siblings.close()
    await eventually(lambda: second.siblings.is_lead and third.siblings.lead == 1, within=30)
    assert second.changes[-1].left == {0}
    assert second.changes[-1].lead
    back = await workers(0)
    assert back.siblings.live == ALL
    assert back.siblings.is_lead
    await eventually(lambda: second.siblings.lead == third.siblings.lead == 0, within=30)
    back.siblings.tell("t", b"again")
    await eventually(lambda: second.heard == third.heard == [(0, b"again")], within=30)


async def test_what_cannot_be_used_is_counted_and_breaks_nothing(workers):
    first, second = await workers(0, 2), await workers(1, 2)

    def fails(number: int, message: bytes) -> None:
        raise RuntimeError("cannot")

    second.siblings.hear("fails", fails)
    await eventually(lambda: first.siblings.live == {0, 1}, within=30)
    first.siblings.tell("nobody", b"")
    first.siblings.tell("fails", b"")
    first.siblings.tell("t", b"after")
    await eventually(lambda: second.heard == [(0, b"after")], within=30)
    assert second.refused.reasons == ["topic", "message"]


async def test_a_watcher_that_fails_does_not_keep_the_others_from_knowing(workers, directory):
    first = await workers(0, 2)
    first.siblings._watchers.insert(0, lambda change: 1 / 0)
    await workers(1, 2)
    await eventually(lambda: len(first.changes) == 1, within=30)


async def cut_off(reader: asyncio.StreamReader) -> None:
    """Wait until the other end has closed the connection, unread or not, and said nothing."""
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        LENGTH.pack(MAX_FRAME + 1),
        LENGTH.pack(3) + b"abc",
        frame("hello", b"0"),  # nobody of a lower number says hello to a higher one, and no worker to itself
        frame("hello", b"7"),
        frame("hello", b"x"),
        frame("t", b"without a greeting"),
        b"",
    ],
)
async def test_strangers_are_cut_off(workers, path, said):
    first = await workers(0, 2)
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(said)
    if not said:
        writer.write_eof()
    await cut_off(reader)
    writer.close()
    assert first.siblings.live == {0}
    assert (await workers(1, 2)).siblings.live == {0, 1}


async def test_strangers_that_come_again_and_again_do_not_fill_the_log(workers, path, caplog):
    await workers(0, 2)
    for number in range(20):
        for said in (LENGTH.pack(MAX_FRAME + 1 + number), LENGTH.pack(3) + b"abc", frame(f"t{number}", b"")):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(said)
            await cut_off(reader)
            writer.close()
    assert len([line for line in caplog.messages if "cut" in line or "greeting" in line]) == 2


async def test_who_connects_and_says_nothing_is_cut_off(workers, path, monkeypatch):
    monkeypatch.setattr("gateway.sharing.siblings.GREETING", 0.01)
    await workers(0, 2)
    reader, writer = await asyncio.open_unix_connection(path)
    await cut_off(reader)
    writer.close()


async def test_another_users_process_is_cut_off(workers, path, monkeypatch):
    first = await workers(0, 2)
    monkeypatch.setattr("gateway.sharing.link.os.geteuid", lambda: 12345)
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(frame("hello", b"1"))
    await cut_off(reader)
    writer.close()
    assert first.siblings.live == {0}


async def test_one_that_does_not_read_is_cut_off_and_waits_for_nobody(workers, path, monkeypatch):
    monkeypatch.setattr(link_module, "MAX_UNSENT", 1_000_000)
    first = await workers(0, 2)
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as slow:
        slow.setblocking(False)
        await loop.sock_connect(slow, path)
        await loop.sock_sendall(slow, frame("hello", b"1"))
        await eventually(lambda: first.siblings.live == {0, 1}, within=30)
        first.siblings.tell("t", bytes(5_000_000))
        await eventually(lambda: first.siblings.live == {0}, within=30)
    assert first.changes[-1].left == {1}
    # It is back, and all know that it missed something.
    await workers(1, 2)
    await eventually(lambda: first.changes[-1].joined == {1}, within=30)


async def test_a_link_that_is_replaced_is_told_as_left_and_joined(workers, path):
    """A successor may say hello before we read that the one before it is gone."""
    first = await workers(0, 2)
    writers = []
    for number in (1, 2):
        _, writer = await asyncio.open_unix_connection(path)
        writers.append(writer)
        writer.write(frame("hello", b"1"))
        await eventually(lambda: len(first.changes) == len(writers), f"change {number}", within=30)
    assert (first.changes[1].joined, first.changes[1].left) == ({1}, {1})
    assert first.siblings.live == {0, 1}
    for writer in writers:
        writer.close()


async def test_a_stopped_sibling_holds_up_no_start(workers, path, monkeypatch):
    """It listens, and does not answer."""
    monkeypatch.setattr("gateway.sharing.siblings.PATIENCE", 0.01)
    stopped = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with stopped:
        stopped.bind(path)
        stopped.listen()
        second = await workers(1, 2)
        assert second.siblings.live == {1}
    # Its successor is found.
    await workers(0, 2)
    await eventually(lambda: second.siblings.live == {0, 1}, within=30)


async def test_a_message_that_is_too_long_is_refused(workers, monkeypatch):
    monkeypatch.setattr(link_module, "MAX_FRAME", 100)
    first, _ = await workers(0, 2), await workers(1, 2)
    await eventually(lambda: first.siblings.live == {0, 1}, within=30)
    with pytest.raises(ValueError, match="at most 100"):
        first.siblings.tell("t", bytes(100))


@pytest.mark.parametrize("mode", [0o755, 0o710])
async def test_a_directory_that_others_may_enter_is_refused(directory, mode):
    os.chmod(directory, mode)
    with pytest.raises(ConfigError, match="closed to all others"):
        await Siblings(Seat(0, 2, directory), SystemClock(), NULL_OBSERVER).start()


async def test_a_directory_that_is_not_there_is_refused(directory):
    siblings = Siblings(Seat(0, 2, f"{directory}/none"), SystemClock(), NULL_OBSERVER)
    with pytest.raises(ConfigError, match="No such file"):
        await siblings.start()
    await siblings.close()


PROCESS = """
import asyncio, sys, uvloop
from gateway.core.clock import SystemClock
from gateway.core.observer import NULL_OBSERVER
from gateway.sharing.seat import Seat
from gateway.sharing.siblings import Siblings

async def main():
    siblings = Siblings(Seat(0, 2, sys.argv[1]), SystemClock(), NULL_OBSERVER)
    siblings.hear("t", lambda number, message: siblings.tell_one(number, "t", b"0:" + message))
    await siblings.start()
    await asyncio.Event().wait()

uvloop.run(main())
"""


async def test_a_killed_process_is_known_to_be_gone_and_its_successor_is_found(workers, directory):
    second = await workers(1, 2)
    for _ in range(2):
        second.heard.clear()
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROCESS, directory)
        try:
            await eventually(lambda: second.siblings.live == {0, 1}, within=60)
            second.siblings.tell("t", b"hello")
            await eventually(lambda: second.heard, within=60)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
        await eventually(lambda: second.siblings.is_lead, within=60)
        assert second.heard == [(0, b"0:hello")]
