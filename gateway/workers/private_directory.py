"""The private directory of one service: its workers' Unix sockets, and the configuration in force.

Rules: only its user may enter it. A parent holds a lock of it as long as it lives. A parent that was killed could not
remove its directory: whoever of the same user starts next does, since it finds the lock free. What cleans folders of
temporary files of what is old (systemd-tmpfiles: after 10 days) leaves a directory alone whose lock is held: without
the sockets and the configuration in it no dead worker would have a successor.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "kvgate-workers-"
"""Eight more characters follow, so that no other has its name."""

LOCKED = "locked"
"""A file in a directory whose parent has had its lock."""

YOUNG = 60.0
"""Seconds: a directory without that file that is younger may be one that another parent is just making."""

LONGEST = 50
"""Characters of the folder that it is in: a Unix socket's path has room for 107, and 24 of the directory's own name and
some 30 of a socket's follow."""


@contextlib.contextmanager
def private_directory(root: str | None = None) -> Iterator[Path]:
    """A new directory of mode 0700, removed at the end. ``root``: where; None: where temporary files are.

    Directories that killed parents of this user have left are removed before. Raises OSError.
    """
    where = Path(tempfile.gettempdir() if root is None else root).absolute()
    if len(str(where)) > LONGEST:  # as the paths of some build systems
        where = Path("/tmp")
    _remove_stale(where)
    made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=where))
    try:
        with _opened(made) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (made / LOCKED).touch()
            yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _remove_stale(where: Path) -> None:
    for found in where.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            status = found.lstat()
            if status.st_uid == os.getuid() and not found.is_symlink() and _is_stale(found, status.st_mtime):
                shutil.rmtree(found, ignore_errors=True)


def _is_stale(found: Path, changed: float) -> bool:
    with _opened(found) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return (found / LOCKED).exists() or time.time() - changed > YOUNG


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield opened
    finally:
        os.close(opened)
