"""Listens to the KV events of one cache while the engine computes a text that nobody has sent before.

Events are returned as they came; ``examine`` judges them. Every wait has a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
import zmq

from gateway.kvcache.events.decode import decode
from gateway.kvcache.events.listener import ListenerSource
from gateway.kvcache.events.replay import ReplayBroken, replay, sequence_of
from gateway.kvcache.events.sockets import Change, EventSource, Inbox
from gateway.kvcache.index.block_events import BlockStored

CONNECT = 5.0
"""Seconds until the subscription must be complete."""

CONNECTS = 1.0
"""Seconds within which an engine must connect to us: ZMQ tries ten times a second."""

ANNOUNCE = 5.0
"""Seconds within which the blocks of an answered prompt must be announced: vLLM announces them in the same step."""

SETTLE = 0.05
"""Seconds from the connection to the first probe. A subscription is a message too, and events are not sent to a
subscriber before it has arrived."""

REPLAY = 5.0
"""Seconds without a message from the replay socket."""

BEYOND = 2**62
"""A sequence number that no engine reaches: its replay is the end marker alone, which shows that replays work."""


@dataclass(slots=True)
class Heard:
    """What was received. ``connected``: the subscription was complete. ``messages``: all that came. ``stored``: their
    events of blocks with tokens. ``blocks``: the event with the probe's first block; None: it was not announced.
    ``sequence``: the number of its message."""

    connected: bool = False
    messages: int = 0
    stored: int = 0
    blocks: BlockStored | None = None
    sequence: int | None = None


async def listen(source: EventSource, probe: Callable[[], Awaitable[Sequence[int]]], tries: int) -> Heard:
    """Listen, call ``probe``, which sends a prompt and returns its ids (empty if unknown), and wait for the prompt's
    blocks.

    Raises what ``probe`` raises.
    """
    heard = Heard()
    try:
        with source.open() as inbox:
            try:
                async with asyncio.timeout(CONNECT):
                    while await _next(inbox) is not Change.CONNECTED:
                        if isinstance(source, ListenerSource):
                            break  # it connects in its own time, and is known by its first message
                    heard.connected = True
            except TimeoutError:
                return heard
            await asyncio.sleep(CONNECTS if isinstance(source, ListenerSource) else SETTLE)
            for _ in range(tries):
                await _hear(inbox, heard, await probe())
                if heard.blocks is not None:
                    break
    except zmq.ZMQError:  # an invalid address
        pass
    return heard


async def _next(inbox: Inbox) -> Change | list[bytes]:
    while (item := inbox.receive()) is None:
        await inbox.signal.wait()
    return item


async def _hear(inbox: Inbox, heard: Heard, ids: Sequence[int]) -> None:
    """Read messages until one announces the blocks of ``ids``."""
    try:
        async with asyncio.timeout(ANNOUNCE):
            while heard.blocks is None:
                frames = await _next(inbox)
                if isinstance(frames, Change):
                    continue
                _read(heard, sequence_of(frames), frames[-1], ids)
    except TimeoutError:
        pass


def _read(heard: Heard, sequence: int | None, payload: bytes, ids: Sequence[int]) -> None:
    heard.messages += 1
    for event in decode(payload).events:
        if not isinstance(event, BlockStored) or not event.token_ids:
            continue
        heard.stored += 1
        if _is_first_of(event, ids):
            heard.blocks, heard.sequence = event, sequence
            break


def _is_first_of(event: BlockStored, ids: Sequence[int]) -> bool:
    """Whether the event has the prompt's first block; if the ids are unknown, the first block of any prompt."""
    if event.parent_block_hash is not None:
        return False
    return not ids or event.token_ids == list(ids[: len(event.token_ids)])


async def find(address: str, ids: Sequence[int]) -> Heard:
    """Look for the prompt's blocks in the engine's history, as ``listen`` does in its events."""
    heard = Heard()
    try:
        async with aclosing(replay(address, 0, REPLAY)) as history:
            async for sequence, payload in history:
                _read(heard, sequence, payload, ids)
    except (ReplayBroken, zmq.ZMQError):
        pass
    return heard


async def ask_replay(address: str, sequence: int | None) -> float | None:
    """Ask for the message before ``sequence`` and all later ones; None: for the end marker only.

    Returns the time since the epoch of the message before; None: there is none, or it is not kept any more. Raises
    ReplayBroken.
    """
    start = BEYOND if sequence is None else max(0, sequence - 1)
    before = None
    try:
        async with aclosing(replay(address, start, REPLAY)) as history:
            async for number, payload in history:
                if sequence is not None and number == sequence - 1:
                    before = _time_of(payload)
    except zmq.ZMQError as error:
        raise ReplayBroken(str(error)) from error
    return before


def _time_of(payload: bytes) -> float | None:
    """The time of a batch: the first element of an array, or ``ts`` of a map."""
    try:
        batch = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    at = batch.get("ts") if isinstance(batch, dict) else batch[0] if isinstance(batch, list) and batch else None
    return float(at) if isinstance(at, int | float) else None
