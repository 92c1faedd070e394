from __future__ import annotations

import socket

import pytest

from gateway.errors import ConfigError
from gateway.restart.sockets import open_sockets
from gateway.workers.listening import bound, seated


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


@pytest.mark.parametrize(("found", "count", "each"), [(0, 2, [1, 1]), (1, 3, [1, 1, 1]), (3, 2, [2, 1]), (2, 1, [2])])
def test_each_worker_has_a_socket_of_those_before_or_one_more(found, count, each) -> None:
    before = bound("127.0.0.1", 0, found) if found else []
    try:
        seats = seated(before, "127.0.0.1", 0, count)
        made = [one for seat in seats for one in seat]
        assert list(map(len, seats)) == each
        assert set(before) <= set(made)
        assert len({one.getsockname()[1] for one in made}) == 1
    finally:
        for one in {*before, *made}:
            one.close()


def test_where_no_more_may_listen_all_have_the_same() -> None:
    with socket.create_server(("127.0.0.1", 0)) as given:
        assert seated([given], "127.0.0.1", given.getsockname()[1], 2) == [[given], [given]]


def test_a_port_on_which_a_service_listens_is_an_error() -> None:
    (first,) = open_sockets("127.0.0.1", 0, backlog=8)
    with first, pytest.raises(ConfigError, match="Address already in use"):
        bound("127.0.0.1", first.getsockname()[1], 2)
