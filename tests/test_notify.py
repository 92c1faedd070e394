from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.notify import notify


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A service manager's socket, and how the environment names it."""
    name = f"@kvgate-{uuid.uuid4()}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + name[1:] if name.startswith("@") else name)
        receiver.settimeout(10)
        yield receiver, name


def test_a_services_life(manager) -> None:
    receiver, name = manager
    environ = {"NOTIFY_SOCKET": name}
    notify(status="waiting for the first engine", environ=environ)
    notify("READY=1", status="serving 2 models on 127.0.0.1:8000", environ=environ)
    notify("STOPPING=1", environ=environ)
    assert [receiver.recv(4096) for _ in range(3)] == [
        b"STATUS=waiting for the first engine",
        b"READY=1\nSTATUS=serving 2 models on 127.0.0.1:8000",
        b"STOPPING=1",
    ]


def test_the_processs_own_environment_is_the_default(manager, monkeypatch) -> None:
    receiver, name = manager
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    notify("READY=1")
    assert receiver.recv(4096) == b"READY=1"


def test_a_status_cannot_assign_anything_else(manager) -> None:
    receiver, name = manager
    notify("READY=1", status="all well\nERRNO=5", environ={"NOTIFY_SOCKET": name})
    assert receiver.recv(4096) == b"READY=1\nSTATUS=all well ERRNO=5"


def test_a_manager_that_does_not_read_blocks_nobody(manager, caplog) -> None:
    receiver, name = manager
    for _ in range(2000):
        notify("STATUS=busy", environ={"NOTIFY_SOCKET": name})
    assert "cannot notify" in caplog.text
    assert receiver.recv(4096) == b"STATUS=busy"


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1234"}])
def test_without_a_manager_nothing_happens(environ) -> None:
    notify("READY=1", status="serving", environ=environ)
    notify("STOPPING=1", environ=environ)


def test_a_manager_that_is_gone_is_no_error(tmp_path, caplog) -> None:
    notify("READY=1", environ={"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    assert "cannot notify the service manager of READY=1" in caplog.text
