"""KV events of the mock engines, so that who listens to them has its usual work. ``python -m ...events COUNT``.

Each engine says first that it holds the blocks of some prompts, whose token ids come on stdin: one line of JSON, a list
of lists. Then it stores and evicts blocks as a busy one does. Prints one line of JSON: for each engine the addresses of
its events and of their replay.

As in vLLM (``--prefix-caching-hash-algo xxhash``) a block's name is a hash of its tokens and of the name before it, the
first one's of a number that each engine draws: with what several prompts begin has one name, and is said once.
"""

from __future__ import annotations

import json
import random
import sys
from array import array
from collections import deque
from collections.abc import Sequence
from time import monotonic, sleep

import zmq
from xxhash import xxh3_64_intdigest

from benchmarks.kv_scene import UNIT, message, removed, stored, tokens

RATE = 120
"""Blocks a second that each engine stores, and as many that it evicts: about what it would tell of the traffic here, 75
streams of 64 tokens a second on four engines, whose prompts are known but for one or two blocks."""

RUN = 6
"""Blocks of a message: a step of an engine in which a few answers fill one."""

HELD = 200
"""Messages after which their blocks are evicted: ten seconds."""

REPLAYED = 4_000
"""Messages that a replay has: whoever subscribes within three minutes hears of all."""

END = b"\xff" * 8
"""The sequence number that ends a replay."""


class Engine:
    """One engine's publisher."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], chance: random.Random) -> None:
        self._events = context.socket(zmq.PUB)
        self._replay = context.socket(zmq.ROUTER)
        self.addresses = []
        for socket in (self._events, self._replay):
            socket.linger = 0
            socket.sndhwm = 0
            socket.bind("tcp://127.0.0.1:*")
            self.addresses.append(socket.getsockopt_string(zmq.LAST_ENDPOINT))
        self._chance = chance
        self._root = chance.getrandbits(64)
        self._kept: set[int] = set()
        self._number = 0
        self._sent: deque[tuple[bytes, bytes]] = deque(maxlen=REPLAYED)
        self._held: deque[list[int]] = deque()

    def hold(self, ids: list[int]) -> None:
        """Say that a prompt's whole blocks are held, from now on and for good: those of which that was not said yet."""
        names = self._names(ids)
        known = next((at for at, name in enumerate(names) if name not in self._kept), len(names))
        if new := names[known:]:
            self._kept.update(new)
            parent = names[known - 1] if known else None
            self._send(message([stored(new, parent, ids[known * UNIT : len(names) * UNIT])]))

    def work(self) -> None:
        ids = tokens(self._chance, RUN)
        names = self._names(ids)
        self._held.append(names)
        events = [stored(names, None, ids)]
        if len(self._held) > HELD:
            events += [removed(name) for name in self._held.popleft()]
        self._send(message(events))

    def answer(self) -> None:
        """Who has asked for a replay gets it."""
        while self._replay.poll(0):
            client, _, start = self._replay.recv_multipart()
            for number, payload in self._sent:
                if number >= start:
                    self._replay.send_multipart([client, b"", b"", number, payload])
            self._replay.send_multipart([client, b"", b"", END, b""])

    def _names(self, ids: Sequence[int]) -> list[int]:
        """Of the whole blocks of a prompt's ``ids``."""
        name, data, width = self._root, array("I", ids).tobytes(), UNIT * array("I").itemsize
        return [name := xxh3_64_intdigest(data[at : at + width], name) for at in range(0, len(data) - width + 1, width)]

    def _send(self, payload: bytes) -> None:
        number = self._number.to_bytes(8, "big")
        self._number += 1
        self._events.send_multipart([b"", number, payload])
        self._sent.append((number, payload))


def main() -> None:
    chance = random.Random(4)
    known = json.loads(sys.stdin.readline())
    with zmq.Context() as context:
        engines = [Engine(context, chance) for _ in range(int(sys.argv[1]))]
        print(json.dumps([each.addresses for each in engines]), flush=True)
        for engine in engines:
            for ids in known:
                engine.hold(ids)
        began = monotonic()
        for turn in range(sys.maxsize):
            sleep(max(0.0, began + turn * RUN / RATE / len(engines) - monotonic()))
            engine = engines[turn % len(engines)]
            engine.work()
            engine.answer()


if __name__ == "__main__":
    main()
