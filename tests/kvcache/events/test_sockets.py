from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import uvloop
import zmq
from zmq.utils.monitor import parse_monitor_message

from gateway.kvcache.events.poller import Poller
from gateway.kvcache.events.sockets import (
    BATCH,
    BATCH_BYTES,
    QUEUE,
    SILENT,
    Change,
    Inbox,
    MessageSocket,
    Signal,
    open_monitor,
    open_socket,
)
from gateway.kvcache.events.subscription import Subscription
from tests.support.wait import eventually


async def next_of(inbox: Inbox) -> Change | list[bytes]:
    async with asyncio.timeout(30):
        while (item := inbox.receive()) is None:
            await inbox.signal.wait()
    return item


async def silence(inbox: Inbox) -> None:
    """Nothing comes for so long that nobody looks at the messages any more."""
    messages = inbox._messages
    await eventually(lambda: messages._watched, "the descriptor is heard again")


class Changes:
    """What a monitor says."""

    def __init__(self, monitor: zmq.Socket[bytes]) -> None:
        self.signal = Signal()
        self.ready = MessageSocket(monitor, self.signal)

    def receive(self) -> list[bytes] | None:
        return self.ready.receive()


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


async def test_a_ring_is_kept_for_who_comes_later():
    signal = Signal()
    signal.set()
    signal.set()
    assert await signal.wait(0)
    assert not await signal.wait(0)
    waiting = asyncio.create_task(signal.wait())
    await asyncio.sleep(0)
    signal.set()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert await signal.wait(0), "who was called away has not heard it"


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:*", "ipc://*"])
@pytest.mark.parametrize("poller", [None, Poller(0.003)])
def test_no_message_is_left_lying(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], address: str, poller: Poller | None
):
    """The descriptor tells once that there is something: of a burst while the loop is held up, of the one that comes
    last, of each of many that come alone, after silence and without."""

    async def hear() -> None:
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
                if number % 50 == 0:
                    await silence(inbox)
                send(socket, number, 1)
                assert (await next_of(inbox))[1] == number.to_bytes(8, "big")
            sending = asyncio.create_task(asyncio.to_thread(send, socket, 0, 20 * QUEUE))
            for number in range(20 * QUEUE):
                assert (await next_of(inbox))[1] == number.to_bytes(8, "big")
            await sending
            assert not await inbox.signal.wait(0) or inbox.receive() is None
            socket.close()
            assert await next_of(inbox) is Change.DISCONNECTED
        assert poller is None or poller._timer is None, "nothing is left behind"

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(hear())


async def test_what_nobody_takes_does_not_keep_the_loop_busy():
    """The descriptor is quiet again as soon as it was heard, however long the reader is busy with something else."""
    with publisher("tcp://127.0.0.1:*") as (socket, bound), Subscription(bound).open() as inbox:
        assert await next_of(inbox) is Change.CONNECTED
        assert socket.recv() == b"\x01"
        rings = 0

        def ring() -> None:
            nonlocal rings
            rings += 1

        inbox.signal.set = ring
        send(socket, 0, 10)
        await eventually(lambda: rings, "it is rung")
        for _ in range(100):  # turns of the loop, in each of which a descriptor that is not quiet would be heard
            await asyncio.sleep(0)
        assert rings <= 10
        assert [inbox.receive()[1][-1] for _ in range(10)] == list(range(10))


@asynccontextmanager
async def heard_once(poller: Poller):
    """A publisher's socket, and the inbox of who keeps ``poller``; a first message was taken."""
    with publisher("tcp://127.0.0.1:*") as (socket, bound), Subscription(bound, "", poller).open() as inbox:
        assert await next_of(inbox) is Change.CONNECTED
        assert socket.recv() == b"\x01"
        send(socket, 0, 1)
        assert (await next_of(inbox))[1][-1] == 0
        yield socket, inbox


async def test_who_keeps_pace_is_woken_once_a_tick():
    """By a first message at once, and by whatever comes after it with the next look: the descriptor wakes nobody."""
    poller = Poller(60.0)
    async with heard_once(poller) as (socket, inbox):
        assert inbox.receive() is None
        assert not inbox._messages._watched
        send(socket, 1, 1)
        await eventually(inbox._messages.has_message, "it has come")
        for _ in range(100):
            await asyncio.sleep(0)
        assert not await inbox.signal.wait(0)
        assert inbox.receive()[1][-1] == 1, "who asks all the same gets it"
        assert inbox.receive() is None
        send(socket, 2, 1)
        await eventually(inbox._messages.has_message, "it has come")
        assert not await inbox.signal.wait(0)
        poller._poll_all()
        assert await inbox.signal.wait(0)
        assert inbox.receive()[1][-1] == 2
        assert inbox.receive() is None
        for look in range(SILENT):
            assert not inbox._messages._watched, look
            poller._poll_all()
        assert inbox._messages._watched
        assert poller._timer is None
        send(socket, 3, 1)
        assert (await next_of(inbox))[1][-1] == 3, "it wakes again"
        assert poller._timer is not None
    assert poller._timer is None


async def test_a_lost_connection_wakes_between_two_looks():
    poller = Poller(60.0)
    async with heard_once(poller) as (socket, inbox):
        socket.close()
        assert await next_of(inbox) is Change.DISCONNECTED


async def test_a_change_comes_before_what_is_heard_after_it():
    with publisher("tcp://127.0.0.1:*") as (socket, bound), Subscription(bound).open() as inbox:
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
        ready = MessageSocket(receiver, Signal())
        try:
            for _ in range(5):
                messages, received, drained = ready.receive_some()
                assert (len(messages), received, drained) == (2, 2 * size, False)
            assert ready.receive_some() == ([], 0, True)
        finally:
            ready.close()


async def test_a_message_names_the_connection_that_the_monitor_reported():
    """By ZMQ_SRCFD, which libzmq calls deprecated: what is leaned on for engines that connect to us."""
    accepted = zmq.EVENT_ACCEPTED
    with open_socket(zmq.SUB) as socket, open_monitor(socket, accepted) as monitor:
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.bind("tcp://127.0.0.1:0")
        address = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        signal, changes = Signal(), Changes(monitor)
        messages = MessageSocket(socket, signal)
        connections = set()
        with zmq.Context() as context, context.socket(zmq.XPUB) as first, context.socket(zmq.XPUB) as second:
            for engine in (first, second):
                engine.linger = 0
                engine.connect(address)
                connection = parse_monitor_message(await next_of(changes))["value"]
                await eventually(lambda engine=engine: engine.poll(0), "our subscription comes")
                engine.send_multipart([b"kv", b"hello"])
                await signal.wait(30)
                assert messages.receive_from() == (connection, [b"kv", b"hello"])
                assert messages.receive_from() is None
                connections.add(connection)
        assert len(connections) == 2
        messages.close()
        changes.ready.close()
