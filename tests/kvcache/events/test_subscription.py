from __future__ import annotations

import asyncio

import zmq

from gateway.kvcache.events.decode import MAX_MESSAGE
from gateway.kvcache.events.poller import Poller
from gateway.kvcache.events.sockets import Change
from gateway.kvcache.events.subscription import Subscription
from tests.kvcache.conftest import TICK
from tests.kvcache.events.test_sockets import next_of, publisher, send
from tests.support.wait import eventually


async def test_a_message_that_is_larger_than_what_is_decoded_ends_its_connection(monkeypatch, caplog):
    """libzmq would have all of it before it could be refused. It does not connect again by itself; what is said on the
    next connection is heard."""
    monkeypatch.setattr("gateway.kvcache.events.subscription.RESUME", 0.05)
    with publisher("tcp://127.0.0.1:*") as (socket, address), Subscription(address, "", Poller(TICK)).open() as inbox:
        socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        assert await next_of(inbox) is Change.CONNECTED
        await asyncio.get_running_loop().run_in_executor(None, _subscribed, socket)
        socket.send_multipart([b"kv", bytes(8), b"x" * MAX_MESSAGE])
        assert (await next_of(inbox))[2] == b"x" * MAX_MESSAGE
        socket.send_multipart([b"kv", bytes(8), b"x" * (MAX_MESSAGE + 1)])
        assert [await next_of(inbox), await next_of(inbox)] == [Change.DISCONNECTED, Change.CONNECTED]
        await asyncio.get_running_loop().run_in_executor(None, _subscribed, socket)
        send(socket, 7, 1)
        assert (await next_of(inbox))[1] == (7).to_bytes(8, "big")
    assert caplog.text.count("a connection was closed for what came on it") == 1


def _subscribed(socket: zmq.Socket[bytes]) -> None:
    """Wait for a subscription."""
    while socket.recv() != b"\x01":
        pass


async def test_a_lost_connection_is_made_again_once(engine, monkeypatch, caplog):
    """libzmq does that by itself: we keep out of it."""
    monkeypatch.setattr("gateway.kvcache.events.subscription.RESUME", 0.01)
    with Subscription(engine.address, "", Poller(TICK)).open() as inbox:
        for _ in range(3):
            assert await next_of(inbox) is Change.CONNECTED
            await engine.subscribed()
            await engine.stop()
            assert await next_of(inbox) is Change.DISCONNECTED
            await eventually(lambda: inbox.receive() is None and inbox._lost is None, "libzmq connects again")
            await engine.start()
    assert "a connection was closed" not in caplog.text


async def test_nothing_is_connected_again_once_it_is_closed(engine, monkeypatch):
    monkeypatch.setattr("gateway.kvcache.events.subscription.RESUME", 60.0)
    with Subscription(engine.address, "", Poller(TICK)).open() as inbox:
        assert await next_of(inbox) is Change.CONNECTED
        await engine.subscribed()
        await engine.send_frames(b"kv", bytes(8), b"x" * (MAX_MESSAGE + 1))
        assert await next_of(inbox) is Change.DISCONNECTED
        timer = inbox._lost
        assert timer is not None
        assert not timer.cancelled()
    assert timer.cancelled()
