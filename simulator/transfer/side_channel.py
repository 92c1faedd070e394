"""NIXL's side channel: a ROUTER at every rank, and a connection to each remote engine's.

The handshake is the real one's: ``["", msgpack(("get_meta_msg", pipeline rank, tensor rank))]`` is answered with
``["", payload, clock]``. What NIXL moves beside it (reads, writes, notifications) goes over the same sockets here:
``["", msgpack([kind, number, engine id, *arguments])]``, answered with ``["", msgpack([number, *results])]``. Numbers
tell which answer is whose; number 0 wants none.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from typing import Any

import msgspec
import zmq
import zmq.asyncio

GET_META = b"get_meta_msg"

encode = msgspec.msgpack.encode
decode = msgspec.msgpack.decode

Handle = Callable[[str, list[Any]], list[Any] | None]
"""What is done with a message: its kind and arguments to results; None: it is for no engine that lives here."""


class Payload(msgspec.Struct):
    """The handshake's answer. ``agent_metadata_bytes``: msgpack of Agent."""

    compatibility_hash: str
    agent_metadata_bytes: bytes


class Agent(msgspec.Struct):
    """As much of a real agent's metadata as somebody here reads."""

    engine_id: str
    block_size: int


class RemoteLost(Exception):
    """A remote engine does not answer, or is not the one that was meant."""


class SideChannel:
    """The listening end of one rank."""

    def __init__(self, payload: Payload, handle: Handle) -> None:
        self._payload = encode(payload)
        self._handle = handle
        self._socket: zmq.asyncio.Socket | None = None

    def bind(self, context: zmq.asyncio.Context, host: str, port: int) -> int:
        """Take the port; 0: any. Returns it. Raises zmq.ZMQError if it is taken."""
        self._socket = context.socket(zmq.ROUTER)
        self._socket.bind(f"tcp://{host}:{port or '*'}")
        return int(str(self._socket.getsockopt_string(zmq.LAST_ENDPOINT)).rpartition(":")[2])

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None

    async def serve(self) -> None:
        """Answer until cancelled. What nobody can read is dropped, as the real listener's thread would die of it."""
        while self._socket is not None:
            identity, *frames = await self._socket.recv_multipart()
            with contextlib.suppress(msgspec.DecodeError, ValueError, TypeError, IndexError):
                answer = self._answer(decode(frames[-1]))
                if answer is not None:
                    await self._socket.send_multipart([identity, b"", *answer])

    def _answer(self, message: list[Any]) -> list[bytes] | None:
        kind, number, *rest = message
        if kind == GET_META:
            return [self._payload, encode(time.perf_counter())]
        results = self._handle(str(kind), rest)
        return [encode([number, *(["gone"] if results is None else results)])] if number else None


class Remote:
    """A connection to a remote engine's side channel. It survives the engine: what is asked of a dead one times out."""

    def __init__(self, context: zmq.asyncio.Context, host: str, port: object, timeout: float) -> None:
        self.engine_id = ""
        self._timeout = timeout
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[list[Any]]] = {}
        self._socket: zmq.asyncio.Socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._task: asyncio.Task[None] | None = None
        try:
            self._socket.connect(f"tcp://{host}:{port}")
        except zmq.ZMQError as error:
            self._socket.close()
            raise RemoteLost(f"tcp://{host}:{port}: {error}") from error

    async def meet(self, engine_id: str, compatibility: str) -> None:
        """The handshake. Raises RemoteLost: nobody answers, or somebody else, or one that is not compatible."""
        try:
            await self._socket.send_multipart([b"", encode((GET_META, 0, 0))])
            async with asyncio.timeout(self._timeout):
                frames = await self._socket.recv_multipart()
            payload = decode(frames[-2], type=Payload)
            agent = decode(payload.agent_metadata_bytes, type=Agent)
        except (TimeoutError, msgspec.DecodeError, IndexError) as error:
            raise RemoteLost(f"no handshake with {engine_id}: {error!r}") from error
        if payload.compatibility_hash != compatibility:
            raise RemoteLost(f"{engine_id}: NIXL compatibility hash mismatch")
        if agent.engine_id != engine_id:
            raise RemoteLost(f"engine id mismatch: expected {engine_id}, received {agent.engine_id}")
        self.engine_id = engine_id
        self._task = asyncio.get_running_loop().create_task(self._listen(), name="simulated-remote")

    async def ask(self, kind: str, *arguments: Any) -> list[Any]:
        """A message's results. Raises RemoteLost."""
        if self._socket.closed:
            # Another request has found the engine dead. Not left to the socket: pyzmq forgets a future with its error.
            raise RemoteLost(f"{self.engine_id} does not answer {kind}")
        number = next(self._numbers)
        answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        try:
            await self._socket.send_multipart([b"", encode([kind, number, self.engine_id, *arguments])])
            async with asyncio.timeout(self._timeout):
                results = await answer
        except TimeoutError as error:
            raise RemoteLost(f"{self.engine_id} does not answer {kind}") from error
        finally:
            del self._pending[number]
        if results == ["gone"]:
            raise RemoteLost(f"{self.engine_id} is gone from its address")
        return results

    async def tell(self, kind: str, *arguments: Any) -> None:
        """A message that is not answered, and lost if the connection is."""
        if not self._socket.closed:
            await self._socket.send_multipart([b"", encode([kind, 0, self.engine_id, *arguments])])

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._socket.close(linger=0)

    async def _listen(self) -> None:
        while True:
            frames = await self._socket.recv_multipart()
            number, *results = decode(frames[-1])
            waiting = self._pending.get(number)
            if waiting is not None and not waiting.done():
                waiting.set_result(results)
