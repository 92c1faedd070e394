"""Sockets that a service manager gives: which listener each is for, and what is refused."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable

import pytest

from gateway.errors import ConfigError
from gateway.restart import activation
from gateway.restart.activation import given_sockets

Give = Callable[..., dict[str, str]]


@pytest.fixture
def give(monkeypatch) -> Give:
    """Puts sockets at descriptors in a row, and returns the environment that tells of them."""
    start = 700
    monkeypatch.setattr(activation, "FIRST", start)

    def give(*sockets: socket.socket, names: str | None = None, pid: int = 1) -> dict[str, str]:
        for place, one in enumerate(sockets):
            os.dup2(one.fileno(), start + place)
            one.close()
        told = {"LISTEN_PID": str(pid), "LISTEN_FDS": str(len(sockets)), "HOME": "/"}
        return told if names is None else told | {"LISTEN_FDNAMES": names}

    return give


def listening(host: str = "127.0.0.1") -> socket.socket:
    return socket.create_server((host, 0))


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (None, ["clients", "admin"]),
        ("kvgate.socket:kvgate.socket", ["clients", "admin"]),
        ("admin:clients", ["admin", "clients"]),
        ("clients:clients", ["clients"]),
    ],
)
def test_a_socket_is_for_the_listener_that_its_name_or_its_place_says(give, names, found):
    environ = give(listening(), listening(), names=names)
    given = given_sockets(environ, 1)
    assert list(given) == found
    assert sum(map(len, given.values())) == 2
    assert environ == {"HOME": "/"}, "its children are given nothing"
    for one in (one for several in given.values() for one in several):
        assert not one.get_inheritable()
        assert not one.getblocking()
        one.close()


def test_what_another_process_was_given_is_not_ours(give):
    assert given_sockets(give(pid=2), 1) == {}
    assert given_sockets({}, 1) == {}


@pytest.mark.parametrize(
    ("kind", "names", "said"),
    [
        (socket.SOCK_DGRAM, None, "not a TCP socket that listens"),
        (socket.SOCK_STREAM, None, "not a TCP socket that listens"),
        (None, "clients:metrics", "is called 'metrics'"),
    ],
)
def test_what_cannot_serve_is_an_error(give, kind, names, said):
    sockets = [listening(), listening()] if kind is None else [socket.socket(type=kind)]
    environ = give(*sockets, names=names)
    with pytest.raises(ConfigError, match=said):
        given_sockets(environ, 1)
    for place, _ in enumerate(sockets):
        with contextlib.suppress(OSError):  # those that it did not come to
            os.close(activation.FIRST + place)


def test_a_descriptor_that_is_none_is_an_error(give):
    with pytest.raises(ConfigError, match="cannot be used"):
        given_sockets({"LISTEN_PID": "1", "LISTEN_FDS": "1"}, 1)
