"""Descriptors 0, 1 and 2, which a service manager or a shell may have closed (``2>&-``).

Whatever is opened next gets the lowest free number, a socket as well as anything. uvloop then aborts the process when
it closes one of these three, and what is printed would go into somebody's connection.
"""

from __future__ import annotations

import os
import sys

NUMBERS = (0, 1, 2)


def open_standard_streams() -> None:
    """Open /dev/null on each of them that is closed, and Python's own streams with it. To be called before anything
    else opens a descriptor."""
    for number in NUMBERS:
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
