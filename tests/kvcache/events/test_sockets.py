from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import uvloop
import zmq
from zmq.utils.monitor import parse_monitor_message

from gateway.core.signal import Signal
from gateway.kvcache.events.poller import Poller
from gateway.kvcache.events.sockets import (
    BATCH,
    BATCH_BYTES,
    QUEUE,
    Change,
    Inbox,
    WatchedSocket,
    open_monitor,
    open_socket,
    receive,
    receive_some,
)
from gateway.kvcache.events.subscription import Subscription
from tests.support.wait import eventually


async def next_of(inbox: Inbox) -> Change | list[bytes]:
    async with asyncio.timeout(30):
        while (item := inbox.receive()) is None:
            await inbox.signal.wait()
    return item


class Changes:
    """What a monitor says."""

    def __init__(self, monitor: zmq.Socket[bytes]) -> None:
        self.signal = Signal()
        self.ready = WatchedSocket(monitor, self.signal)
        self.some: list[list[bytes]] = []

    def receive(self) -> list[bytes] | None:
        self.some += self.ready.receive_some()[0]
        return self.some.pop(0) if self.some else None


@contextmanager
def publisher(address: str) -> Iterator[tuple[zmq.Socket[bytes], str]]:
    """Of an I/O thread of its own; it keeps what is not taken yet. Also the address that it got."""
    with zmq.Context() as context, context.socket(zmq.XPUB) as socket:
        socket.linger = 0
        socket.sndhwm = 0
        socket.bind(address)
        yield socket, socket.getsockopt_string(zmq.LAST_ENDPOINT)


def send(socket: zmq.Socket[bytes], first: int, count: int) -> None:
    for number in range(first, first + count):
        socket.send_multipart([b"kv", number.to_bytes(8, "big"), b"x" * 100])


async def test_a_socket_tells_that_it_is_connected_and_that_it_is_not(engine):
    with open_socket(zmq.SUB) as socket, open_monitor(socket) as monitor:
        socket.connect(engine.address)
        changes = Changes(monitor)
        assert parse_monitor_message(await next_of(changes))["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
        await engine.stop()
        assert parse_monitor_message(await next_of(changes))["event"] == zmq.EVENT_DISCONNECTED
        changes.ready.close()
        changes.ready.close()
    assert socket.closed
    assert monitor.closed


async def test_a_socket_is_closed_whatever_happens():
    with pytest.raises(ZeroDivisionError):
        with open_socket(zmq.SUB) as socket:
            raise ZeroDivisionError
    assert socket.closed


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:*", "ipc://*"])
def test_no_message_is_left_lying(loop_factory: Callable[[], asyncio.AbstractEventLoop], address: str):
    """Neither of a burst while the loop is held up, nor the one that comes last, nor each of many that come alone."""

    async def hear() -> None:
        poller = Poller(0.003)
        with publisher(address) as (socket, bound), Subscription(bound, "", poller).open() as inbox:
            assert await next_of(inbox) is Change.CONNECTED
            assert socket.recv() == b"\x01"
            sent = 0
            for burst in (1, 3 * QUEUE, 1, 3, BATCH, BATCH + 1, QUEUE, QUEUE + 1, 2_000):
                waiting = asyncio.create_task(next_of(inbox))
                await asyncio.sleep(0)
                send(socket, sent, burst)  # on the loop's thread, which hears nothing meanwhile
                for number in range(sent, sent + burst):
                    frames = await (waiting if number == sent else next_of(inbox))
                    assert frames == [b"kv", number.to_bytes(8, "big"), b"x" * 100]
                sent += burst
                assert inbox.receive() is None
            for number in range(sent, sent + 300):
                send(socket, number, 1)
                assert (await next_of(inbox))[1] == number.to_bytes(8, "big")
            sending = asyncio.create_task(asyncio.to_thread(send, socket, 0, 20 * QUEUE))
            for number in range(20 * QUEUE):
                assert (await next_of(inbox))[1] == number.to_bytes(8, "big")
            await sending
            assert not await inbox.signal.wait(0) or inbox.receive() is None
            socket.close()
            assert await next_of(inbox) is Change.DISCONNECTED
        assert poller._timer is None, "nothing is left behind"

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(hear())


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_watched_socket_wakes_for_what_comes_after_nothing_was_there(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
):
    """Its descriptor tells once that there is something, and is quiet however long nobody receives it."""

    async def hear() -> None:
        with publisher("tcp://127.0.0.1:*") as (socket, bound), open_socket(zmq.SUB) as subscriber:
            subscriber.setsockopt(zmq.SUBSCRIBE, b"")
            subscriber.connect(bound)
            signal = Signal()
            ready = WatchedSocket(subscriber, signal)
            await eventually(lambda: socket.poll(0), "our subscription comes")
            sent = got = 0
            for burst in (1, 3 * QUEUE, 1, 3, BATCH, BATCH + 1, QUEUE, *[1] * 100):
                send(socket, sent, burst)
                sent += burst
                while got < sent:
                    messages, size = ready.receive_some()
                    for frames in messages:
                        assert frames == [b"kv", got.to_bytes(8, "big"), b"x" * 100]
                        got += 1
                    assert size == 110 * len(messages)
                    if not messages:
                        assert await signal.wait(30)
                await eventually(lambda: ready.receive_some() == ([], 0), "that was all")
            while await signal.wait(0):
                pass
            rings, ring = 0, signal.set

            def count() -> None:
                nonlocal rings
                rings += 1
                ring()

            signal.set = count
            send(socket, sent, 10)
            assert await signal.wait(30)
            for _ in range(100):  # turns of the loop, in each of which a descriptor that is not quiet would be heard
                await asyncio.sleep(0)
            assert rings == 1
            ready.close()
            ready.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(hear())


@asynccontextmanager
async def heard_once(poller: Poller):
    """A publisher's socket, and the inbox of what ``poller`` looks at; a first message was taken."""
    with publisher("tcp://127.0.0.1:*") as (socket, bound), Subscription(bound, "", poller).open() as inbox:
        assert await next_of(inbox) is Change.CONNECTED
        assert socket.recv() == b"\x01"
        send(socket, 0, 1)
        await eventually(lambda: there(inbox), "it has come")
        assert (await next_of(inbox))[1][-1] == 0
        assert inbox.receive() is None
        await inbox.signal.wait(0)
        yield socket, inbox


def there(inbox: Inbox) -> bool:
    return bool(zmq.zmq_poll(inbox._polled, 0))


async def test_messages_wake_nobody_between_two_looks():
    poller = Poller(60.0)
    async with heard_once(poller) as (socket, inbox):
        send(socket, 1, 1)
        await eventually(lambda: there(inbox), "it has come")
        for _ in range(100):
            await asyncio.sleep(0)
        assert not await inbox.signal.wait(0)
        assert inbox.receive()[1][-1] == 1, "who asks all the same gets it"
        assert inbox.receive() is None
        send(socket, 2, 1)
        await eventually(lambda: there(inbox), "it has come")
        assert not await inbox.signal.wait(0)
        waiting = asyncio.create_task(next_of(inbox))
        await asyncio.sleep(0)
        await poller.catch_up()
        assert (await waiting)[1][-1] == 2
    assert poller._timer is None


async def test_a_lost_connection_wakes_between_two_looks():
    poller = Poller(60.0)
    async with heard_once(poller) as (socket, inbox):
        socket.close()
        assert await next_of(inbox) is Change.DISCONNECTED


async def test_a_change_comes_before_what_is_heard_after_it():
    with publisher("tcp://127.0.0.1:*") as (socket, bound), Subscription(bound, "", Poller(0.003)).open() as inbox:
        assert socket.recv() == b"\x01"
        send(socket, 0, 1)
        assert await next_of(inbox) is Change.CONNECTED
        assert (await next_of(inbox))[0] == b"kv"


@pytest.mark.parametrize("size", [BATCH_BYTES // 2, BATCH_BYTES * 3 // 4])
async def test_what_is_received_at_once_is_bounded_in_bytes(size: int):
    # Within one context what was sent is there at once: no I/O thread decides how many come together.
    with zmq.Context() as context, context.socket(zmq.PUSH) as sender, context.socket(zmq.PULL) as receiver:
        sender.bind("inproc://messages")
        receiver.connect("inproc://messages")
        for _ in range(10):
            sender.send(b"x" * size, zmq.NOBLOCK)
        polled = [(receiver, int(zmq.POLLIN))]
        for _ in range(5):
            messages, received = receive_some(polled)
            assert (len(messages), received) == (2, 2 * size)
        assert receive_some(polled) == ([], 0)


async def test_a_message_names_the_connection_that_the_monitor_reported():
    """By ZMQ_SRCFD, which libzmq calls deprecated: what is leaned on for engines that connect to us."""
    accepted = zmq.EVENT_ACCEPTED
    with open_socket(zmq.SUB) as socket, open_monitor(socket, accepted) as monitor:
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.bind("tcp://127.0.0.1:0")
        address = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        changes = Changes(monitor)
        connections = set()
        with zmq.Context() as context, context.socket(zmq.XPUB) as first, context.socket(zmq.XPUB) as second:
            for engine in (first, second):
                engine.linger = 0
                engine.connect(address)
                connection = parse_monitor_message(await next_of(changes))["value"]
                # libzmq subscribes when the socket is next asked for anything.
                await eventually(lambda engine=engine: socket.poll(0) or engine.poll(0), "our subscription comes")
                engine.send_multipart([b"kv", b"hello"])
                await eventually(lambda: socket.poll(0), "its message comes")
                first, frames = receive(socket)
                assert (first.get(zmq.SRCFD), frames) == (connection, [b"kv", b"hello"])
                assert not socket.poll(0)
                connections.add(connection)
        assert len(connections) == 2
        changes.ready.close()
