"""A real Valkey or Redis server, as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.tenants.settings import ValkeySettings
from gateway.valkey.client import connect
from tests.support.ports import free_in_a_row
from tests.support.wait import eventually

SERVER = shutil.which("valkey-server") or shutil.which("redis-server")

# A user's machine may do without; CI has to have it.
needs_valkey = pytest.mark.skipif(
    SERVER is None and not os.environ.get("CI"), reason="neither valkey-server nor redis-server is installed"
)


class ValkeyServer:
    """A server that can be stopped and started again, with its data, on the same port."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_in_a_row()
        self._folder = folder
        self._options = options
        self._process: asyncio.subprocess.Process | None = None
        password = dict(zip(options[::2], options[1::2], strict=True)).get("--requirepass")
        user = "" if password is None else f":{password}@"
        self.settings = ValkeySettings(f"redis://{user}127.0.0.1:{self.port}", "tests")
        self._ports = ("--port", str(self.port))

    def speak_tls(self, certificate: str, key: str, authority: str) -> None:
        """Speak TLS only, from the next start on."""
        self._ports = ("--port", "0", "--tls-port", str(self.port))
        self._options = (*self._options, "--tls-cert-file", certificate, "--tls-key-file", key)
        self._options = (*self._options, "--tls-ca-cert-file", authority, "--tls-auth-clients", "no")
        self.settings = ValkeySettings(f"rediss://127.0.0.1:{self.port}?ssl_ca_certs={authority}", "tests")

    async def start(self) -> None:
        assert SERVER is not None, "CI installs valkey-server or redis-server"
        self._process = await asyncio.create_subprocess_exec(
            *(SERVER, *self._ports, "--bind", "127.0.0.1", "--dir", str(self._folder)),
            *("--save", "", "--appendonly", "yes", "--appendfsync", "always", *self._options),
            stdout=asyncio.subprocess.DEVNULL,
        )
        await eventually(self._listens, "the server listens")
        while not await self._answers():  # noqa: ASYNC110 -- there is no event for it
            await asyncio.sleep(0.01)

    def _listens(self) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0

    async def _answers(self) -> bool:
        with contextlib.suppress(Exception):  # it may still read its data
            return bool(await self.call("PING"))
        return False

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            self._process = None

    async def call(self, *command: str) -> Any:
        """The answer to a command."""
        client = connect(self.settings.url)
        try:
            return await client.execute_command(*command)
        finally:
            await client.aclose()


@contextlib.asynccontextmanager
async def valkey(folder: Path, *options: str) -> AsyncIterator[ValkeyServer]:
    server = ValkeyServer(folder, *options)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()
