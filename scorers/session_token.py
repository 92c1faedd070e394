"""The scorer ``session-token``.

What it does
    1 on the endpoint that the request's session token names, 0 elsewhere; all 0 without a token. Each answer has a
    token in the same header: the one for the endpoint that serves it. A client that sends it back tends to stay there.

    The token is the endpoint's name in base64, and nothing is remembered.

    Source: llm-d's ``session-affinity-scorer`` with its strategy ``encoded_endpoint_header``. Its tokens name pods as
    Kubernetes does; an endpoint that is named so understands them.

Scheduling intent
    Affinity as a preference, by its weight, without memory: it outlives restarts, and all gateways agree in it. The
    scorer ``session-affinity`` remembers by a session's name instead, which clients need not be taught to send back;
    the filter ``session-pin`` is this one as a rule.

Inputs
    ``headers`` of the request, the endpoints' names, the plans made.

Parameters
    ``header`` (default ``x-session-token``): of requests and answers.
    ``leg`` (default ``decode``): whose endpoint the token names: ``decode``, or ``prefill`` for a profile of its own.

Example
    ``plugins: [{name: session, type: session-token}]``
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.framework import Context, Endpoint, Plan, Request


class SessionToken:
    """Where the token says."""

    @dataclass(frozen=True, slots=True)
    class Parameters:
        header: str = "x-session-token"
        leg: Literal["decode", "prefill"] = "decode"

        def __post_init__(self) -> None:
            if not self.header.strip():
                raise ValueError("header must not be empty")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._header = parameters.header.strip().lower()
        self._leg = parameters.leg

    def score(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[float]:
        token = request.headers.get(self._header)
        if token is None:
            return [0.0] * len(endpoints)
        return [1.0 if _token(endpoint) == token else 0.0 for endpoint in endpoints]

    def answer_headers(self, request: Request, plan: Plan, /) -> Mapping[str, str]:
        endpoint = plan.endpoint(self._leg)
        return {} if endpoint is None else {self._header: _token(endpoint)}


def _token(endpoint: Endpoint) -> str:
    return b64encode(endpoint.name.encode()).decode()
