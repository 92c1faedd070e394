"""Waiting for a condition, never for luck."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


async def eventually(condition: Callable[[], Any], what: str = "what is waited for", *, within: float = 30.0) -> None:
    """Wait for ``condition()`` to be true; fails the test, naming ``what``, if it is not within some seconds.

    Where the condition says it all, as the traceback shows it, ``what`` need not be said again.
    """
    deadline = asyncio.get_running_loop().time() + within
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not within {within:g} s: {what}")
        await asyncio.sleep(0.005)


ASK_AGAIN = 0.05
"""Seconds between two questions of ``until``: each may be a request to another process, on a busy machine."""


async def until(
    condition: Callable[[], Awaitable[Any]], what: str = "what is waited for", *, within: float = 30.0
) -> None:
    """As ``eventually``, for a condition that has to be awaited: it is asked of a server or of another process."""
    deadline = asyncio.get_running_loop().time() + within
    while not await condition():
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not within {within:g} s: {what}")
        await asyncio.sleep(ASK_AGAIN)
