"""Files that are looked at again and again for changes, and files that are replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path


def state_of(file: str | Path) -> object:
    """A value that changes when ``file`` does: it may be rewritten or replaced, or be a link that is turned."""
    try:
        status = os.stat(file)
    except OSError as error:
        return error.errno
    return status.st_ino, status.st_mtime_ns, status.st_size


def replace_file(file: Path, data: bytes) -> None:
    """Let ``file`` hold ``data``: whoever reads it, also after a crash, finds what it was before or all of ``data``.
    Blocking. Raises OSError."""
    beside = file.with_name(f"{file.name}.{os.getpid()}.new")
    try:
        with open(beside, "wb") as new:
            new.write(data)
            new.flush()
            os.fsync(new.fileno())
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)
