"""Where the workers of a host listen for each other: Unix sockets in the seat's directory, one for each worker."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

from gateway.errors import ConfigError

OPEN_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class SocketDirectory:
    """The open directory. Its sockets are found through a descriptor: a Unix socket's path has at most 107 bytes."""

    def __init__(self, directory: str) -> None:
        """Raises ConfigError, unless it is one that only we may enter."""
        try:
            self._opened = os.open(directory, OPEN_DIRECTORY)
        except OSError as error:
            raise ConfigError(f"the workers' directory {directory}: {error.strerror or error}") from error
        state = os.fstat(self._opened)
        if state.st_uid != os.geteuid() or stat.S_IMODE(state.st_mode) & 0o077:
            self.close()
            raise ConfigError(f"the workers' directory {directory} must be ours, and closed to all others (0700)")

    def close(self) -> None:
        """Paths of it mean nothing any more."""
        os.close(self._opened)

    def path(self, number: int) -> str:
        """Where the worker of this number listens."""
        return f"/proc/self/fd/{self._opened}/{socket_name(number)}"

    def listen(self, number: int) -> socket.socket:
        """Raises ConfigError."""
        path = self.path(number)
        Path(path).unlink(missing_ok=True)  # of the one who had this seat before
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(path)
        except OSError as error:
            listening.close()
            raise ConfigError(f"a worker's socket: {error.strerror or error}") from error
        listening.setblocking(False)
        return listening

    def unlink(self, number: int) -> None:
        """Nobody listens there any more."""
        with contextlib.suppress(OSError):
            os.unlink(self.path(number))

    def is_there(self, number: int) -> bool:
        """Whether someone listens."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            return probe.connect_ex(self.path(number)) == 0


def socket_name(number: int) -> str:
    """Of a worker's socket, in the seat's directory."""
    return f"worker-{number}.sock"
