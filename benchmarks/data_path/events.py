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
from benchmarks.kv_sockets import EventSockets

RATE = 120
"""Blocks a second that each engine stores, and as many that it evicts: about what it would tell of the traffic here, 75
streams of 64 tokens a second on four engines, whose prompts are known but for one or two blocks."""

RUN = 6
"""Blocks of a message: a step of an engine in which a few answers fill one."""

HELD = 200
"""Messages after which their blocks are evicted: ten seconds."""

REPLAYED = 4_000
"""Messages that a replay has: whoever subscribes within three minutes hears of all."""


class Engine:
    """One engine's publisher."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], chance: random.Random) -> None:
        self.sockets = EventSockets(context, REPLAYED)
        self._chance = chance
        self._root = chance.getrandbits(64)
        self._kept: set[int] = set()
        self._held: deque[list[int]] = deque()

    def hold(self, ids: list[int]) -> None:
        """Say that a prompt's whole blocks are held, from now on and for good: those of which that was not said yet."""
        names = self._names(ids)
        known = next((at for at, name in enumerate(names) if name not in self._kept), len(names))
        if new := names[known:]:
            self._kept.update(new)
            parent = names[known - 1] if known else None
            self.sockets.send(message([stored(new, parent, ids[known * UNIT : len(names) * UNIT])]))

    def work(self) -> None:
        ids = tokens(self._chance, RUN)
        names = self._names(ids)
        self._held.append(names)
        events = [stored(names, None, ids)]
        if len(self._held) > HELD:
            events += [removed(name) for name in self._held.popleft()]
        self.sockets.send(message(events))

    def _names(self, ids: Sequence[int]) -> list[int]:
        """Of the whole blocks of a prompt's ``ids``."""
        name, data, width = self._root, array("I", ids).tobytes(), UNIT * array("I").itemsize
        return [name := xxh3_64_intdigest(data[at : at + width], name) for at in range(0, len(data) - width + 1, width)]


def main() -> None:
    chance = random.Random(4)
    known = json.loads(sys.stdin.readline())
    with zmq.Context() as context:
        engines = [Engine(context, chance) for _ in range(int(sys.argv[1]))]
        print(json.dumps([each.sockets.addresses for each in engines]), flush=True)
        for engine in engines:
            for ids in known:
                engine.hold(ids)
        began = monotonic()
        for turn in range(sys.maxsize):
            sleep(max(0.0, began + turn * RUN / RATE / len(engines) - monotonic()))
            engine = engines[turn % len(engines)]
            engine.work()
            engine.sockets.answer()


if __name__ == "__main__":
    main()
