"""The scorer ``no-hit-lru``.

What it does
    Of a prompt of which no candidate holds anything: 1 on the endpoint that has been given no such prompt for longest,
    0 on the one that was given the last, evenly between; endpoints that have never had one come first. Of any other
    prompt: 1/2 for all.

    Source: llm-d's ``no-hit-lru-scorer``. It counts places among all endpoints that it remembers; here they are counted
    among the candidates, which is the same where all are candidates.

Scheduling intent
    Spreads new prefixes, so that caches fill evenly: loads alone send many to the engine that happens to be idle, and
    blend it with a scorer of the prefix, which decides where there is a hit.

Inputs
    ``matches`` of the request, the endpoints' names, the plans made.

Parameters
    ``endpoints`` (default 1024): remembered at once; beyond it the least recent is forgotten.

Example
    ``plugins: [{name: spread, type: no-hit-lru}]``
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from json import dumps, loads

from gateway.framework import Context, Endpoint, Plan, Request


class NoHitLru:
    """New prefixes take turns."""

    @dataclass(frozen=True, slots=True)
    class Parameters:
        endpoints: int = 1024

        def __post_init__(self) -> None:
            if self.endpoints < 1:
                raise ValueError("endpoints must be at least 1")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._most = parameters.endpoints
        self._tell = context.tell
        self._turns: OrderedDict[str, None] = OrderedDict()  # endpoints' names; the last was given the last

    def score(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[float]:
        matches, count = request.matches, len(endpoints)
        if any(matches[endpoint.slot].tokens for endpoint in endpoints):
            return [0.5] * count
        if count < 2:
            return [1.0] * count
        places = {name: place for place, name in enumerate(self._turns)}
        order = sorted(
            range(count), key=lambda at: places.get(endpoints[at].name, -1)
        )  # stable: the new in their order
        scores = [0.0] * count
        for place, at in enumerate(order):
            scores[at] = 1.0 - place / (count - 1)
        return scores

    def on_placed(self, request: Request, plan: Plan, /) -> None:
        if any(match.tokens for match in request.matches.values()):
            return
        # The decode leg's is the older of the two.
        names = [leg.endpoint.name for leg in reversed(plan.legs)]
        self._given(names)
        self._tell(dumps(names).encode())

    def on_heard(self, note: bytes, /) -> None:
        """Another worker has given new prompts to these endpoints."""
        self._given(loads(note))

    def remembered(self) -> Iterator[bytes]:
        return iter([dumps(list(self._turns)).encode()])

    def _given(self, names: Sequence[str]) -> None:
        for name in names:
            self._turns[name] = None
            self._turns.move_to_end(name)
        while len(self._turns) > self._most:
            self._turns.popitem(last=False)
