"""Listening sockets: who may join a port, and what becomes of connections at the end."""

from __future__ import annotations

import socket

import pytest

from gateway.restart.sockets import accept_waiting, is_listening, let_none_begin, open_sockets


def test_a_port_is_taken_by_one_alone_and_then_joined_by_who_asks():
    (first,) = open_sockets("127.0.0.1", 0, backlog=8)
    port = first.getsockname()[1]
    with first:
        with pytest.raises(OSError, match="in use"):
            open_sockets("127.0.0.1", port, backlog=8)
        for host in ("127.0.0.1", "0.0.0.0"):
            (other,) = open_sockets(host, port, backlog=8, shared=True)
            with other:
                assert is_listening(other)


def test_who_took_a_port_without_sharing_it_keeps_it():
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        for shared in (False, True):
            with pytest.raises(OSError, match="in use"):
                open_sockets("127.0.0.1", foreign.getsockname()[1], backlog=8, shared=shared)


def test_a_name_with_two_addresses_is_listened_to_on_both():
    opened = open_sockets("", 0, backlog=8)
    assert {one.family for one in opened} <= {socket.AF_INET, socket.AF_INET6}
    assert len(opened) == len({one.family for one in opened})
    for one in opened:
        one.close()


def test_none_begins_any_more_and_all_that_have_begun_are_accepted():
    (listening,) = open_sockets("127.0.0.1", 0, backlog=8)
    address = listening.getsockname()
    with socket.create_connection(address) as one, socket.create_connection(address) as other:
        assert let_none_begin(listening)
        with socket.socket() as late:
            late.setblocking(False)
            with pytest.raises(BlockingIOError):
                late.connect(address)
            accepted = list(accept_waiting(listening))
            assert {each.getpeername() for each in accepted} == {one.getsockname(), other.getsockname()}
            listening.close()
        for each in accepted:
            each.send(b"x")
            each.close()
        assert one.recv(1) == other.recv(1) == b"x"
