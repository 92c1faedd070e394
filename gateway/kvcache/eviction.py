"""In which order an engine will evict blocks: what is held now is not what will be held when a request is scheduled.

vLLM takes blocks for new tokens from the head of a queue of free blocks. A request's blocks go to the queue's tail when
it ends, its last block first, and leave the queue while a request uses them. The queue is not announced, but it follows
from what is: when blocks were stored, and when requests of ours that used them began and ended. What others' requests
use again is not known.
Source: ``KVCacheManager.free`` and ``FreeKVCacheBlockQueue`` in vllm/v1/core (0.32).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from itertools import count

from gateway.kvcache.shelf import Stretch

WALK = 2_000
"""Runs of blocks that are looked at for those that go next: a millisecond, and more blocks than a queue of prompts
displaces at once."""

SPARE = 1_000
"""Runs of which nothing is held any more that may be in the order, beyond as many as there are others."""

NOTHING: Mapping[Stretch, int] = {}


class EvictionOrder:
    """Of one endpoint's GPU blocks. ``place``: its GPU's on the shelf.

    Runs of blocks that were last used at the same time, each within one stretch, as bits.
    """

    def __init__(self, place: int) -> None:
        self._place = place
        self._numbers = count()
        # By number, the least recently used first, where a run is; and of each stretch, its runs.
        self._order: OrderedDict[int, Stretch] = OrderedDict()
        self._runs: dict[Stretch, dict[int, int]] = {}
        self._used: dict[Stretch, dict[object, int]] = {}
        self._next: tuple[int, Mapping[Stretch, int]] | None = None
        self._crowded = SPARE

    def stored(self, stretch: Stretch, bits: int) -> None:
        """These blocks were computed."""
        self._to_end(stretch, bits)
        self._next = None
        if len(self._order) > self._crowded:
            self._tidy()

    def use(self, by: object, blocks: Mapping[Stretch, int]) -> None:
        """The request ``by`` will use these, or compute them."""
        used = self._used
        for stretch, bits in blocks.items():
            users = used.get(stretch)
            if users is None:
                used[stretch] = {by: bits}
            else:
                users[by] = bits
        self._next = None

    def free(self, by: object, blocks: Mapping[Stretch, int]) -> None:
        """It has ended. ``blocks``: of its prompt, in order; the last of them go first."""
        used = self._used
        for stretch, bits in reversed(list(blocks.items())):
            users = used.get(stretch)
            if users is not None:
                users.pop(by, None)
                if not users:
                    del used[stretch]
            if held := bits & stretch.held(self._place):
                self._to_end(stretch, held)
        self._next = None

    def next_out(self, blocks: int) -> Mapping[Stretch, int]:
        """What has to go for so many new ``blocks`` (of the index's unit): stretch -> bits."""
        if self._next is None or self._next[0] != blocks:
            self._next = blocks, self._walk(blocks)
        return self._next[1]

    def _to_end(self, stretch: Stretch, bits: int) -> None:
        order, runs = self._order, self._runs.setdefault(stretch, {})
        for number, had in list(runs.items()):
            if had & bits:
                if left := had & ~bits:
                    runs[number] = left
                else:
                    del runs[number], order[number]
        number = next(self._numbers)
        runs[number] = bits
        order[number] = stretch

    def _walk(self, blocks: int) -> Mapping[Stretch, int]:
        place, used = self._place, self._used
        out: dict[Stretch, int] = {}
        empty = []
        for walked, (number, stretch) in enumerate(self._order.items()):
            if blocks <= 0 or walked == WALK:
                break
            held = stretch.held(place)
            bits = held & self._run(stretch, number, held)
            if not bits:
                empty.append(number)
                continue
            for users in used.get(stretch, {}).values():
                bits &= ~users
            if size := bits.bit_count():
                out[stretch] = out.get(stretch, 0) | (bits if size <= blocks else _highest(bits, blocks))
                blocks -= size
        for number in empty:
            self._drop(number)
        return out

    def _run(self, stretch: Stretch, number: int, held: int) -> int:
        """Its bits. What an answer has added to a stretch since is in no run, and is with the last one."""
        runs = self._runs[stretch]
        bits = runs[number]
        known = bits
        for others in runs.values():
            known |= others
        if bits.bit_length() == known.bit_length():
            bits |= held & ~known
        return bits

    def _drop(self, number: int) -> None:
        stretch = self._order.pop(number)
        runs = self._runs[stretch]
        del runs[number]
        if not runs:
            del self._runs[stretch]

    def _tidy(self) -> None:
        place = self._place
        for number in [number for number, stretch in self._order.items() if not stretch.held(place)]:
            self._drop(number)
        self._crowded = 2 * len(self._order) + SPARE


def _highest(bits: int, size: int) -> int:
    """The ``size`` highest of ``bits``, which are more: the blocks of a sequence's end."""
    for _ in range(bits.bit_count() - size):
        bits &= bits - 1
    return bits
