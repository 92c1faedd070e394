"""Ports that are next to each other: of ranks, and of what listens for them."""

from __future__ import annotations

import contextlib
import random
import socket

BELOW_EPHEMERAL = range(20_000, 32_000)
"""The system hands out none of these by itself, so that no other test is given one meanwhile."""


def free_in_a_row(count: int) -> int:
    """The first of ``count`` ports of 127.0.0.1 that were free a moment ago."""
    for port in random.sample(BELOW_EPHEMERAL, 100):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for offset in range(count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port + offset))
            return port
    raise AssertionError(f"no {count} ports in a row are free")
