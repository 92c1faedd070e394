"""What an endpoint probably holds where nobody tells: what was sent there, least recently used forgotten first.

The capacity is the engine's own, and there is no limit on depth: in simulation an estimate of the right size is as good
as events, one of a quarter of it costs 66 % of mean time to first token, one that forgets what lies behind the first
4,096 tokens more than doubles it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence


class Estimate:
    """Keys sent to one endpoint, at most ``capacity`` of them."""

    def __init__(self) -> None:
        self._keys: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[int]:
        return iter(self._keys)

    def sent(self, keys: Sequence[int], capacity: int) -> tuple[list[int], list[int]]:
        """A prompt was sent: keys that are new, and keys that had to go.

        A prompt's first block becomes the most recent one, since engines free a sequence from its tail. What does not
        fit at all is the tail's loss.
        """
        known = self._keys
        new = []
        for key in reversed(keys[:capacity]):
            if key in known:
                known.move_to_end(key)
            else:
                known[key] = None
                new.append(key)
        gone = []
        while len(known) > capacity:
            gone.append(known.popitem(last=False)[0])
        return new, gone
