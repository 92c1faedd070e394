"""The KV events of one cache, listened to while a text that nobody has sent before is computed there.

What is heard is told as it came; what it means is ``examine``'s business. Every wait is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
import zmq

from gateway.kvcache.events import BlockStored, decode, short
from gateway.kvcache.intake import Expected
from gateway.kvcache.replay import ReplayBroken, replay, sequence_of
from gateway.kvcache.sockets import Change, EventSource, Inlet

CONNECT = 5.0
"""Seconds until the subscription must stand."""

CONNECTS = 1.0
"""Seconds within which an engine that connects to us does so: ZMQ tries ten times a second."""

ANNOUNCE = 5.0
"""Seconds within which blocks of an answered prompt must be announced: vLLM does so with the step itself."""

SETTLE = 0.05
"""Seconds from the connection to the first probe: a subscription is a message too, and what is published before it has
come is not sent."""

REPLAY = 5.0
"""Seconds without a word from the replay socket."""

BEYOND = 2**62
"""A sequence number that no engine reaches: its replay is the end marker alone, which shows that there is a replay."""


@dataclass(slots=True)
class Heard:
    """``connected``: the subscription stood. ``messages``: that came at all, and ``stored`` their events of blocks with
    tokens. ``blocks``: the event that held the probe's first one; None: not announced. ``sequence``: its message's.
    """

    connected: bool = False
    messages: int = 0
    stored: int = 0
    blocks: BlockStored | None = None
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class Replayed:
    """``whole``: the answer came to its end. ``problem``: why not. ``before``: seconds since the epoch of the message
    before the probe's; None: there is none, or it is not kept any more."""

    whole: bool
    problem: str = ""
    before: float | None = None


async def listen(source: EventSource, probe: Callable[[], Awaitable[Sequence[int]]], tries: int) -> Heard:
    """Listen, have ``probe`` send a prompt (it returns the ids, empty if not known), and wait for its blocks.

    Raises what ``probe`` raises.
    """
    heard = Heard()
    try:
        with source.open() as inlet:
            try:
                async with asyncio.timeout(CONNECT):
                    while await _next(inlet) is not Change.CONNECTED:
                        if isinstance(source, Expected):
                            break  # it connects within its moment, and is known when it speaks
                    heard.connected = True
            except TimeoutError:
                return heard
            await asyncio.sleep(CONNECTS if isinstance(source, Expected) else SETTLE)
            for _ in range(tries):
                await _hear(inlet, heard, await probe())
                if heard.blocks is not None:
                    break
    except zmq.ZMQError:  # an address that cannot be one
        pass
    return heard


async def _next(inlet: Inlet) -> Change | list[bytes]:
    while (item := inlet.take()) is None:
        await inlet.bell.wait()
    return item


async def _hear(inlet: Inlet, heard: Heard, ids: Sequence[int]) -> None:
    """Take messages until one announces the blocks of ``ids``."""
    try:
        async with asyncio.timeout(ANNOUNCE):
            while heard.blocks is None:
                frames = await _next(inlet)
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
    """Whether the event begins the prompt; where its ids are not known, whether it begins any."""
    if event.parent_block_hash is not None:
        return False
    return not ids or event.token_ids == list(ids[: len(event.token_ids)])


async def find(address: str, ids: Sequence[int]) -> Heard:
    """As ``listen`` does after its probe, but in the engine's history."""
    heard = Heard()
    try:
        async with aclosing(replay(address, 0, REPLAY)) as history:
            async for sequence, payload in history:
                _read(heard, sequence, payload, ids)
    except (ReplayBroken, zmq.ZMQError):
        pass
    return heard


async def ask_replay(address: str, sequence: int | None) -> Replayed:
    """Ask for the message before ``sequence`` and all since; None: for nothing but the end."""
    start = BEYOND if sequence is None else max(0, sequence - 1)
    before = None
    try:
        async with aclosing(replay(address, start, REPLAY)) as history:
            async for number, payload in history:
                if sequence is not None and number == sequence - 1:
                    before = _time_of(payload)
    except ReplayBroken as error:
        return Replayed(False, str(error))
    except zmq.ZMQError as error:
        return Replayed(False, str(error))
    return Replayed(True, before=before)


def _time_of(payload: bytes) -> float | None:
    """A batch's own time: the first of an array, or ``ts`` of a map."""
    try:
        batch = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    at = batch.get("ts") if isinstance(batch, dict) else batch[0] if isinstance(batch, list) and batch else None
    return float(at) if isinstance(at, int | float) else None


def first_hash(event: BlockStored) -> int:
    return short(event.block_hashes[0])
