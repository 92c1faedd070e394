"""The filter ``session-pin``.

What it does
    Keeps only the endpoint that the request's session token names, if it is among the candidates; else all. Each answer
    has a token in the same header: the one for the endpoint that serves it. A client that sends it back stays there.

    The token is the endpoint's name in base64, and nothing is remembered.

    Source: llm-d's ``session-affinity-filter`` with its strategy ``encoded_endpoint_header``. Its tokens name pods as
    Kubernetes does; an endpoint that is named so understands them.

Scheduling intent
    Hard affinity that outlives restarts and needs no memory. The client chooses its engine by it: use it where clients
    may, and behind a filter of load (``utilization``) that an overloaded engine does not pass.

Inputs
    ``headers`` of the request, the endpoints' names, the plans made.

Parameters
    ``header`` (default ``x-session-token``): of requests and answers.
    ``leg`` (default ``decode``): whose endpoint the token names: ``decode``, or ``prefill`` for a profile of its own.

Example
    ``plugins: [{name: pin, type: session-pin}]``
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.framework import Context, Endpoint, Plan, Request


class SessionPin:
    """The endpoint of the session's token, and no other."""

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

    def filter(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[Endpoint]:
        token = request.headers.get(self._header)
        if token is None:
            return endpoints
        return [endpoint for endpoint in endpoints if _token(endpoint) == token] or endpoints

    def answer_headers(self, request: Request, plan: Plan, /) -> Mapping[str, str]:
        endpoint = plan.endpoint(self._leg)
        return {} if endpoint is None else {self._header: _token(endpoint)}


def _token(endpoint: Endpoint) -> str:
    return b64encode(endpoint.name.encode()).decode()
