"""The scorer ``prefix-cache``.

What it does
    The share of the prompt that an endpoint holds in its cache, on any tier: 1 is all of it, 0 none.

Scheduling intent
    Affinity: sends a prompt to where its beginning was computed. It knows no load; blend it with a scorer that does.

Inputs
    ``matches`` and ``prompt_tokens``.

Parameters
    None.

Example
    ``profiles: [{name: default, scorers: [{plugin: affinity, weight: 0.4}], picker: best}]``
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.framework import Context, Endpoint, NoParameters, Request


class PrefixCache:
    """Matched tokens / prompt tokens."""

    compares_load = True
    Parameters = NoParameters

    def __init__(self, parameters: NoParameters, context: Context) -> None:
        pass

    def score(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[float]:
        tokens, matches = request.prompt_tokens, request.matches
        if tokens <= 0:
            return [0.0] * len(endpoints)
        # The last block of a match may reach beyond an estimated count.
        return [min(1.0, matches[endpoint.slot].tokens / tokens) for endpoint in endpoints]
