from __future__ import annotations

import socket

import pytest

from gateway.errors import ConfigError
from gateway.workers.listening import bound


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_all_have_one_port_and_none_listens_yet(host, family) -> None:
    sockets = bound(host, 0, 3)
    try:
        assert len({one.getsockname()[1] for one in sockets}) == 1
        assert {one.family for one in sockets} == {family}
        with socket.socket(family) as client, pytest.raises(ConnectionRefusedError):
            client.connect(sockets[0].getsockname())
        # One that listens gets all connections: the others have no queue yet.
        sockets[1].listen()
        for _ in range(10):
            with socket.create_connection(sockets[0].getsockname()[:2]):
                pass
    finally:
        for one in sockets:
            one.close()


def test_a_port_that_another_has_is_an_error() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            bound("127.0.0.1", port, 2)
    with pytest.raises(ConfigError, match=r"cannot listen on nowhere\.invalid"):
        bound("nowhere.invalid", 80, 2)
