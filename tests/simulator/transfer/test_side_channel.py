"""A connection to a remote engine that another request has given up: who still holds it is told, and nothing else."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
import zmq.asyncio

from simulator.transfer.side_channel import Agent, Payload, Remote, RemoteLost, SideChannel, encode


@pytest.fixture
async def remote() -> AsyncIterator[Remote]:
    """One that has met its engine, ``e``."""
    context = zmq.asyncio.Context()
    channel = SideChannel(Payload("same", encode(Agent("e", 16))), lambda kind, arguments: [kind, *arguments])
    port = channel.bind(context, "127.0.0.1", 0)
    serving = asyncio.create_task(channel.serve())
    made = Remote(context, "127.0.0.1", port, 5.0)
    await made.meet("e", "same")
    yield made
    made.close()
    serving.cancel()
    channel.close()
    context.destroy(linger=0)


async def test_what_is_asked_is_answered(remote: Remote) -> None:
    assert await remote.ask("read", "r", [1]) == ["read", "e", "r", [1]]


async def test_a_given_up_connection_fails_at_once_and_leaves_no_error_behind(remote: Remote) -> None:
    """An error that nobody has seen is logged whenever the collector finds it, in whatever code that is."""
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unseen.append(context))
    remote.close()
    with pytest.raises(RemoteLost):
        await remote.ask("read", "r")
    await remote.tell("done", "r")
    gc.collect()
    assert unseen == []
