"""An engine's KV events without an engine: they are sent at the rate of a busy vLLM.

Prints its address, and begins when it is told how many blocks a second, and for how many seconds (a line of JSON each);
after a tenth of the time it says that its cache was emptied.
"""

from __future__ import annotations

import json
import random
import sys
from time import perf_counter, sleep

import zmq

from benchmarks.kv_scene import EVENTS, UNIT, message, stored, tokens
from benchmarks.kv_sockets import EventSockets

TICK = 0.005
"""Seconds between two looks at what is due: a GPU's decode step takes a few times that."""


class Template:
    """A message whose hashes are replaced before each sending: encoding afresh would cost more than all that is
    measured. The first tokens of each run are replaced as well, so that no two blocks are the same."""

    def __init__(self, chance: random.Random, run: int) -> None:
        """``run``: blocks of an event; runs of one block are behind those of the message before, as answers grow."""
        self.blocks = EVENTS
        self._chance = chance
        marks = [chance.getrandbits(64) | 1 << 63 for _ in range(2 * EVENTS)]
        names, parents = marks[:EVENTS], marks[EVENTS:]
        token = 2**31 + 1
        events = []
        for first in range(0, EVENTS, run):
            ids = tokens(chance, run)
            ids[0] = token
            events.append(stored(names[first : first + run], parents[first] if run == 1 else None, ids))
        self._bytes = bytearray(message(events))
        self._names = [self._bytes.index(mark.to_bytes(8, "big")) for mark in names]
        self._parents = [at for mark in parents if (at := self._bytes.find(mark.to_bytes(8, "big"))) >= 0]
        self._tokens = []
        at = -1
        while (at := self._bytes.find(token.to_bytes(4, "big"), at + 1)) >= 0:
            self._tokens.append(at)

    def behind(self) -> list[int]:
        """Hashes of blocks that must be known before the next message."""
        return [int.from_bytes(self._bytes[at : at + 8], "big") for at in self._names]

    def next(self) -> bytes:
        for name, parent in zip(self._names, self._parents, strict=False):
            self._bytes[parent : parent + 8] = self._bytes[name : name + 8]
        for places, width in ((self._names, 8), (self._tokens, 4)):
            fresh = self._chance.randbytes(width * len(places))
            for number, at in enumerate(places):
                self._bytes[at : at + width] = fresh[width * number : width * (number + 1)]
        return bytes(self._bytes)


def main() -> None:
    chance = random.Random(4)
    shapes = [Template(chance, EVENTS), Template(chance, 1)]
    with zmq.Context() as context:
        sockets, sent_ever = EventSockets(context), 0
        print(json.dumps({"address": sockets.addresses[0], "unit": UNIT}), flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            began, sent, cleared = perf_counter(), 0, False
            while (now := perf_counter() - began) < order["seconds"]:
                while sent < now * order["rate"]:
                    shape = shapes[sent_ever % len(shapes)]
                    if clear := not cleared and now * 10 > order["seconds"]:
                        cleared = True
                    if clear or not sent_ever:
                        known = [stored([name], None, tokens(chance, 1)) for name in shapes[1].behind()]
                        payload = message([{"type": "AllBlocksCleared"}, *known])
                    else:
                        payload = shape.next()
                    sockets.send(payload)
                    sent_ever += 1
                    sent += shape.blocks
                sleep(TICK)
            print(json.dumps({"sent": sent}), flush=True)


if __name__ == "__main__":
    main()
