"""Files that are looked at again and again for changes."""

from __future__ import annotations

import os


def state_of(file: str) -> object:
    """A value that changes when ``file`` does: it may be rewritten or replaced, or be a link that is turned."""
    try:
        status = os.stat(file)
    except OSError as error:
        return error.errno
    return status.st_ino, status.st_mtime_ns, status.st_size
