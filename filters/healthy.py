"""The filter ``healthy``.

What it does
    Keeps endpoints whose engine is up and that are not draining; of a request that only one engine can serve
    (``bound``) also those that are. An endpoint in its slow start (``warmth`` below 1) stays only while it has no more
    than its share of requests: ``warmth`` x the mean of the fully warm ones, plus one. Where no fully warm endpoint
    is up, all that are up stay.

Scheduling intent
    A rule for every profile. An engine that came back has empty queues and an empty cache, and would otherwise draw
    every request at once.

Inputs
    ``engine.up``, ``draining``, ``warmth``, ``load.requests``; ``bound`` of the request.

Parameters
    None.

Example
    ``plugins: [{name: healthy, type: healthy}]``
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.framework import Context, Endpoint, NoParameters, Request


class Healthy:
    """Endpoints that may be sent to now."""

    Parameters = NoParameters

    def __init__(self, parameters: NoParameters, context: Context) -> None:
        pass

    def filter(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[Endpoint]:
        bound = request.bound
        # Nearly always there are none that are down, draining or in their slow start: looked for first, they cost less
        # than a list of the others.
        for one in endpoints:
            if not one.engine.up or one.warmth < 1.0 or (one.draining and not bound):
                break
        else:
            return endpoints
        up = [endpoint for endpoint in endpoints if endpoint.engine.up and (bound or not endpoint.draining)]
        usable = endpoints if len(up) == len(endpoints) else up
        warm = [endpoint for endpoint in usable if endpoint.warmth >= 1.0]
        if not warm or len(warm) == len(usable):
            return usable
        mean = sum(endpoint.load.requests for endpoint in warm) / len(warm)
        # Plus one: an idle fleet must not keep a new engine from its first request, which is what shows that it works.
        return [
            endpoint
            for endpoint in usable
            if endpoint.warmth >= 1.0 or endpoint.load.requests <= endpoint.warmth * mean + 1
        ]
