"""Ports for what a test starts: next to each other, as ranks need them, and nobody else's once it has ended."""

from __future__ import annotations

import contextlib
import random
import socket

BELOW_EPHEMERAL = range(20_000, 32_000)
"""The system hands out none of these by itself. So no other test is given one meanwhile: where an engine was killed,
its port refuses connections, and is free for the engine that comes back."""

CHANCE = random.SystemRandom()
"""Hypothesis seeds the common generator: all test processes would draw the same ports."""


def free_in_a_row(count: int = 1) -> int:
    """The first of ``count`` ports of 127.0.0.1 that were free a moment ago."""
    for port in CHANCE.sample(BELOW_EPHEMERAL, 100):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for offset in range(count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port + offset))
            return port
    raise AssertionError(f"no {count} ports in a row are free")
