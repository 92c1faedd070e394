"""The filter ``bounded-hash``.

What it does
    Consistent hashing with bounded loads (CHWBL). Each endpoint has ``replicas`` places on a ring; a request's key is
    hashed onto it, and the first endpoint from there on that has at most ``load_factor`` * (requests + 1) / endpoints
    requests in flight is kept, alone. One always is: the least loaded has no more than the mean.

    The key is the model, the adapter, and the session if there is one (``by: session``) or the first ``prefix_tokens``
    tokens of the prompt.

    Source: KubeAI's ``PrefixHash``: factor 1.25, 256 replicas, the first 100 characters; the algorithm is Mirrokni,
    Thorup and Zadimoghaddam's (2018). SMG's ``prefix_hash`` takes 256 tokens.

Scheduling intent
    Affinity without any knowledge of caches, which gateways that share nothing agree upon; another endpoint moves few
    keys. It does not see how long a prompt is, nor what was evicted.

Inputs
    ``token_ids``, ``session``, ``adapter``; ``load.requests``; the endpoints' names.

Parameters
    ``by`` (default ``prefix``): ``prefix`` or ``session``; a request without a session goes by its prefix.
    ``prefix_tokens`` (default 32): tokens; prompts that begin alike stay together.
    ``load_factor`` (default 1.25): times the mean, at least 1.
    ``replicas`` (default 256): places of an endpoint on the ring; fewer make shares uneven.

Example
    ``plugins: [{name: ring, type: bounded-hash, parameters: {prefix_tokens: 256}}]``
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from gateway.framework import Context, Endpoint, Request

SPARE = 64
"""Endpoints on a ring that are no candidates, beyond as many as there are candidates: those that are out for a while
keep their places, those that are gone for good do not pile up."""


class BoundedHash:
    """The first on the ring that is not too busy."""

    @dataclass(frozen=True, slots=True)
    class Parameters:
        by: Literal["prefix", "session"] = "prefix"
        prefix_tokens: int = 32
        load_factor: float = 1.25
        replicas: int = 256

        def __post_init__(self) -> None:
            if self.prefix_tokens < 1:
                raise ValueError("prefix_tokens must be at least 1")
            if not self.load_factor >= 1:
                raise ValueError("load_factor must be at least 1")
            if not 1 <= self.replicas <= 4096:
                raise ValueError("replicas must be in 1..4096")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._parameters = parameters
        self._rings: dict[str, _Ring] = {}  # by model

    def filter(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[Endpoint]:
        if len(endpoints) < 2:
            return endpoints
        it = self._parameters
        candidates = {endpoint.name: endpoint for endpoint in endpoints}
        ring = self._rings.get(request.model.name)
        if ring is None:
            ring = self._rings[request.model.name] = _Ring(it.replicas)
        ring.admit(candidates)
        total = sum(endpoint.load.requests for endpoint in endpoints)
        bound = it.load_factor * (total + 1) / len(endpoints)
        for name in ring.walk(self._key(request)):
            endpoint = candidates.get(name)
            if endpoint is not None and endpoint.load.requests <= bound:
                return [endpoint]
        return endpoints

    def _key(self, request: Request) -> int:
        of = f"{request.model.name}\0{request.adapter or ''}\0".encode()
        if self._parameters.by == "session" and request.session:
            of += b"session\0" + request.session.encode(errors="surrogatepass")
        else:
            of += request.token_ids[: self._parameters.prefix_tokens].tobytes()
        return int.from_bytes(blake2b(of, digest_size=8).digest())


class _Ring:
    """Names at places in 0 .. 2^64 - 1. ``replicas``: places of each name."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._names: set[str] = set()
        self._places: list[tuple[int, str]] = []

    def admit(self, names: Iterable[str]) -> None:
        """See that all of ``names`` are on the ring."""
        wanted = set(names)
        if len(self._names) > 2 * len(wanted) + SPARE:
            self._names, self._places = set(), []
        new = wanted - self._names
        if new:
            self._names |= new
            self._places += [(place, name) for name in new for place in _places(name, self._replicas)]
            self._places.sort()

    def walk(self, key: int) -> Iterable[str]:
        """The names in the order of their places from ``key`` on, once around."""
        places = self._places
        first = bisect_right(places, key, key=lambda place: place[0])
        for i in range(first, len(places)):
            yield places[i][1]
        for i in range(first):
            yield places[i][1]


def _places(name: str, count: int) -> Iterable[int]:
    """Each digest is eight places: hashing is what a new name costs."""
    for i in range((count + 7) // 8):
        digest = blake2b(f"{i}\0{name}".encode(), digest_size=64).digest()
        for j in range(min(8, count - 8 * i)):
            yield int.from_bytes(digest[8 * j : 8 * j + 8])
