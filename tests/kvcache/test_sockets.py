from __future__ import annotations

import pytest
import zmq

from gateway.kvcache.sockets import is_connected, open_monitor, open_socket


async def test_a_socket_tells_that_it_is_connected_and_that_it_is_not(engine):
    with open_socket(zmq.SUB) as socket, open_monitor(socket) as monitor:
        socket.connect(engine.address)
        assert is_connected(await monitor.recv_multipart())
        await engine.stop()
        assert not is_connected(await monitor.recv_multipart())
    assert socket.closed
    assert monitor.closed


async def test_a_socket_is_closed_whatever_happens():
    with pytest.raises(ZeroDivisionError):
        with open_socket(zmq.SUB) as socket:
            raise ZeroDivisionError
    assert socket.closed
