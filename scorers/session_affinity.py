"""The scorer ``session-affinity``.

What it does
    1 on the endpoint that served the session's last request (and the one that prefilled it), 0 elsewhere. All 0 for
    requests without a session, and for a session that is new, forgotten, or whose endpoint is no candidate: other
    scorers place those, and the session stays where it went. With ``by: hash`` nothing is remembered: the score is a
    rank in 0..1 by rendezvous hash of session and endpoint, so that 1 is where the session belongs, and the next
    where it goes while that one is away.

    Source: the session routers of vLLM production-stack, AIBrix and llm-d (``session-affinity-scorer``); AIBrix's
    caller keys go by rendezvous hash.

Scheduling intent
    A conversation stays with its cache, without knowing the cache. With a weight above the sum of all others it is
    hard, with less a preference. ``hash`` agrees among gateways that share nothing, and after a restart; ``remember``
    lets the first turn go where the other scorers say, and all workers of a host remember the same.

Inputs
    ``session`` of the request (a header, a cookie or a body field: ``models[].session``), the endpoints'
    names, the plans made.

Parameters
    ``by`` (default ``remember``): ``remember`` or ``hash``.
    ``ttl`` (default 3600.0): seconds without a request after which a session is forgotten: longer than engines keep
    most prefixes.
    ``sessions`` (default 100000): remembered at once, about 300 bytes each; beyond it the least recent is forgotten.

Example
    ``plugins: [{name: session, type: session-affinity, parameters: {by: hash}}]``
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from json import dumps, loads
from types import MappingProxyType
from typing import Literal

from gateway.framework import Context, Endpoint, Plan, Request

LONGEST = 64
"""Characters of a session's name that are kept as they are: a UUID has 36. Of a longer one its digest is kept, so that
no client decides how much memory a session takes."""

TOGETHER = 200
"""Sessions in one note to a worker that has just started: half a millisecond's work."""


class SessionAffinity:
    """Where the session was before."""

    @dataclass(frozen=True, slots=True)
    class Parameters:
        by: Literal["remember", "hash"] = "remember"
        ttl: float = 3600.0
        sessions: int = 100_000

        def __post_init__(self) -> None:
            if not self.ttl > 0:
                raise ValueError("ttl must be above 0 seconds")
            if self.sessions < 1:
                raise ValueError("sessions must be at least 1")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._hash = parameters.by == "hash"
        self._ttl = parameters.ttl
        self._most = parameters.sessions
        self._clock = context.clock
        self._tell = context.tell
        # (model, session) -> last used, the names of the legs' endpoints; in the order of use
        self._homes: OrderedDict[tuple[str, str], tuple[float, tuple[str, ...]]] = OrderedDict()
        self._seen: Mapping[tuple[str, str], tuple[float, tuple[str, ...]]] = self._homes

    def __copy__(self) -> SessionAffinity:
        """A read-only copy that shares the sessions, since copying 100,000 of them takes 50 ms."""
        made = object.__new__(type(self))
        vars(made).update(vars(self), _homes=OrderedDict(), _seen=MappingProxyType(self._homes))
        return made

    def score(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[float]:
        if not request.session:
            return [0.0] * len(endpoints)
        if self._hash:
            return _ranks(request, endpoints)
        home = self._seen.get(_key(request))
        if home is None or self._clock.monotonic() - home[0] > self._ttl:
            return [0.0] * len(endpoints)
        return [1.0 if endpoint.name in home[1] else 0.0 for endpoint in endpoints]

    def on_placed(self, request: Request, plan: Plan, /) -> None:
        if not request.session or self._hash:
            return
        key, home = _key(request), tuple([leg.endpoint.name for leg in plan.legs])
        self._keep(key, self._clock.monotonic(), home)
        self._tell(dumps([[*key, 0.0, home]]).encode())

    def on_heard(self, note: bytes, /) -> None:
        """Another worker has placed sessions: each with its model, its name, how long ago that was, and where."""
        now = self._clock.monotonic()
        for model, session, age, home in loads(note):
            key, at = (model, session), now - age
            if (known := self._homes.get(key)) is None or known[0] < at:
                self._keep(key, at, tuple(home))

    def remembered(self) -> Iterator[bytes]:
        """All sessions, those used last at the end."""
        homes, now = list(self._homes.items()), self._clock.monotonic()
        parts = (homes[start : start + TOGETHER] for start in range(0, len(homes), TOGETHER))
        return (dumps([[*key, now - at, home] for key, (at, home) in part]).encode() for part in parts)

    def _keep(self, key: tuple[str, str], at: float, home: tuple[str, ...]) -> None:
        homes, now = self._homes, self._clock.monotonic()
        homes[key] = at, home
        homes.move_to_end(key)
        while homes and (len(homes) > self._most or now - next(iter(homes.values()))[0] > self._ttl):
            homes.popitem(last=False)


def _key(request: Request) -> tuple[str, str]:
    session = request.session or ""
    if len(session) > LONGEST:
        session = blake2b(session.encode(errors="surrogatepass"), digest_size=LONGEST // 4).hexdigest()
    return request.model.name, session


def _ranks(request: Request, endpoints: Sequence[Endpoint]) -> list[float]:
    """Highest random weight: another endpoint moves only the sessions that are now its own."""
    model, session = _key(request)
    prefix = blake2b(f"{model}\0{session}\0".encode(errors="surrogatepass"), digest_size=8)
    weights = []
    for endpoint in endpoints:
        weight = prefix.copy()
        weight.update(endpoint.name.encode())
        weights.append(int.from_bytes(weight.digest()))
    ranks = {weight: rank for rank, weight in enumerate(sorted(weights, reverse=True))}
    return [1.0 - ranks[weight] / len(weights) for weight in weights]
