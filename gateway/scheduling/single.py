"""The handler ``single``: one profile, one leg.

What it does
    Runs one profile over all endpoints and serves the request, whole, on the best.

Scheduling intent
    The plain case: every endpoint prefills and decodes.

Inputs
    None of its own: the profile's plugins decide.

Parameters
    ``profile`` (default ``default``): the profile's name.

Example
    ``handlers: [{name: default, type: single, parameters: {profile: default}}]``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.framework import Context, Endpoint, Plan, Request, RunProfile
from gateway.framework.request import DECODE, PlannedLeg


class Single:
    """One profile, one leg. ``profiles``: those it runs, which wiring checks."""

    @dataclass(frozen=True, slots=True)
    class Parameters:
        profile: str = "default"

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._profile = parameters.profile
        self.profiles = (parameters.profile,)

    def plan(self, request: Request, endpoints: Sequence[Endpoint], run: RunProfile, /) -> Plan:
        return Plan((PlannedLeg((DECODE, run(self._profile, endpoints)[0])),), "single")
