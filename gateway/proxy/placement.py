"""What is booked for a request, on which endpoints, and what was known when it was."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.fleet.booking import Booking
from gateway.framework import Endpoint, Plan
from gateway.kvcache.use import BlockUse
from gateway.proxy.connectors import Transfer


@dataclass(slots=True, eq=False)
class Placement:
    """A request on its endpoints. ``decode``: what is booked there, and ``decode_use`` its blocks. ``prefill``,
    ``prefill_use``: the same of a separate prefill leg that has not ended.

    ``split``: the decode leg fetches the prompt's KV, and does not compute it.
    """

    plan: Plan
    decode: Booking
    decode_use: BlockUse
    prefill: Booking | None = None
    prefill_use: BlockUse | None = None
    split: bool = False


@dataclass(frozen=True, slots=True)
class Parcel:
    """A prefill's answer that no engine has used yet. ``at``: of its end or before, by ``pauses.age_clock``."""

    prefill: Endpoint
    transfer: Transfer
    answer: bytes
    at: float
