"""The handler ``header-profile``: one leg, by the profile that a header names.

What it does
    Runs the profile that the request's header names, or ``default`` where it names none, over all endpoints, and serves
    the request, whole, on the best. A header that names no profile of ``profiles`` is the client's error (400).

    Source: llm-d's ``header-profile-handler``.

Scheduling intent
    Several ways of placing behind one model name, chosen by who sends the request: a coordinator that calls once for
    each phase (llm-d's, with ``EPP-Profile: prefill`` and then ``decode``), or batch jobs beside chats.

Inputs
    ``headers`` of the request; the profile's plugins decide.

Parameters
    ``profiles`` (required): the profiles that the header may name.
    ``default`` (default null: the first of them): the profile of a request without the header, or with an empty one.
    ``header`` (default ``epp-profile``): the header's name.

Example
    ``handlers: [{name: default, type: header-profile, parameters: {profiles: [decode, prefill]}}]``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.errors import ClientError
from gateway.framework import Context, Endpoint, Plan, Request, RunProfile


class HeaderProfile:
    """The profile that a header names. ``profiles``: those it runs, which wiring checks."""

    @dataclass(frozen=True, slots=True)
    class Parameters:
        profiles: tuple[str, ...]
        default: str | None = None
        header: str = "epp-profile"

        def __post_init__(self) -> None:
            if not self.profiles:
                raise ValueError("profiles must name at least one profile")
            if self.default is not None and self.default not in self.profiles:
                raise ValueError("default must be one of profiles")
            if not self.header.strip():
                raise ValueError("header must not be empty")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self.profiles = parameters.profiles
        self._default = parameters.default or parameters.profiles[0]
        self._header = parameters.header.strip().lower()

    def plan(self, request: Request, endpoints: Sequence[Endpoint], run: RunProfile, /) -> Plan:
        name = request.headers.get(self._header, "").strip() or self._default
        if name not in self.profiles:
            allowed = ", ".join(self.profiles)
            raise ClientError(f"The header {self._header} must be one of: {allowed}.", param=self._header)
        return Plan.of(run(name, endpoints)[0], reason="single")
