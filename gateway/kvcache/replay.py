"""One request to an engine's replay socket, and what can go wrong with its answer.

The engine's ROUTER drops silently what a slow reader leaves, END marker included, so an answer counts as whole only if
no number is missing and the marker has come. Frames are read from their end: engines of before 0.32 send no topic.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

import zmq

from gateway.kvcache.sockets import Bell, Ready, open_socket

END = b"\xff" * 8
"""The sequence of an answer's last message."""


class ReplayBroken(Exception):
    """The answer has a hole, or stopped before its end, or nobody can be asked. What came before is good."""


def sequence_of(frames: list[bytes]) -> int | None:
    """The number of a message; None if it is none."""
    return int.from_bytes(frames[-2], "big") if len(frames) >= 2 and len(frames[-2]) == 8 else None


async def replay(address: str, start: int, timeout: float) -> AsyncGenerator[tuple[int, bytes], None]:
    """(sequence, payload) of every message from ``start`` on that the engine still has, without a gap between them.

    The first may be later than ``start``: then the engine has forgotten what came before. ``timeout``: seconds without
    anything. Raises ReplayBroken.
    """
    with open_socket(zmq.DEALER) as dealer, contextlib.ExitStack() as stack:
        dealer.rcvhwm = 0
        try:
            dealer.connect(address)
        except zmq.ZMQError as error:
            raise ReplayBroken(str(error)) from error
        dealer.send_multipart([b"", start.to_bytes(8, "big")], zmq.NOBLOCK)  # the first always has room
        bell = Bell()
        answer = Ready(dealer, bell)
        stack.callback(answer.close)
        expected = None
        while True:
            frames = answer.take()
            if frames is None:
                if not await bell.wait(timeout):
                    raise ReplayBroken(f"nothing came for {timeout:g} seconds")
                continue
            sequence = sequence_of(frames)
            if len(frames) >= 2 and frames[-2] == END:
                return
            if sequence is None or sequence < (start if expected is None else expected):
                continue
            if expected is not None and sequence > expected:
                raise ReplayBroken(f"messages {expected} to {sequence - 1} are missing")
            expected = sequence + 1
            yield sequence, frames[-1]
