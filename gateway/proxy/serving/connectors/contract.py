"""What the gateway wants of a connector: the bodies of the two legs, and how long the KV between them lives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.api.body import JsonBody
from gateway.framework import Endpoint, Kind

Fetch = Callable[[str], Awaitable[bytes]]
"""``GET`` a URL of an engine's: the body of its 200. Raises HandoverFailed."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The two endpoints of one request. ``bootstrap_port``: of the prefill engine."""

    kind: Kind
    prefill: Endpoint
    decode: Endpoint
    bootstrap_port: int


class Transfer(Protocol):
    """One request's hand-over.

    ``lease``: seconds after the prefill's answer in which its KV may be fetched; None: it needs nobody to wait for it,
    nor the prefill engine to be alive. ``notices_death``: a decode engine gives up by itself what it fetches from an
    engine whose process is gone; else it waits.
    """

    lease: float | None
    notices_death: bool

    def prefill(self, body: JsonBody) -> JsonBody:
        """The prefill leg's body, of the client's. Raises HandoverFailed where this connector has none for it."""
        ...

    def decode(self, body: JsonBody, answer: bytes) -> JsonBody:
        """The decode leg's body, of the client's and the prefill's ``answer`` (empty where both are sent at once).
        It may change ``lease`` and ``notices_death``: read them after this call.

        Raises HandoverFailed where the answer does not hold what the decode engine needs: it would hang or die of it.
        """
        ...


class Connector(Protocol):
    """``at_once``: both legs are sent together, since each waits for the other. ``decode_can_compute``: where a
    hand-over fails, the decode engine computes the prompt itself. False: its engines generate nothing without a
    partner, and ``scheduling.prefill_decode.NEVER_WHOLE`` names the connector.
    """

    at_once: bool
    decode_can_compute: bool

    async def open(self, pair: Pair) -> Transfer:
        """Begin one request's hand-over. Raises HandoverFailed."""
        ...
