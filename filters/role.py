"""The filter ``role``.

What it does
    Keeps endpoints whose role is one of those allowed.

Scheduling intent
    Keeps whole requests and decode legs off endpoints that only prefill, and prefill legs off those that only decode.

Inputs
    ``role``: ``prefill``, ``decode`` or ``both``.

Parameters
    ``allow`` (default ``[decode, both]``): the roles that stay.

Example
    ``plugins: [{name: may-prefill, type: role, parameters: {allow: [prefill, both]}}]``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.framework import Context, Endpoint, Request, Role


class RoleFilter:
    """Endpoints of some roles."""

    @dataclass(frozen=True, slots=True)
    class Parameters:
        allow: tuple[Role, ...] = (Role.DECODE, Role.BOTH)

        def __post_init__(self) -> None:
            if not self.allow:
                raise ValueError("allow must name at least one role")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self.allowed = frozenset(parameters.allow)

    def filter(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[Endpoint]:
        allowed = self.allowed
        for one in endpoints:
            if one.role not in allowed:
                return [endpoint for endpoint in endpoints if endpoint.role in allowed]
        return endpoints
