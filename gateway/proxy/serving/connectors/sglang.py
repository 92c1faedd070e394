"""SGLang's disaggregation: both legs bear the same room at the prefill engine's bootstrap server, and meet there.

Both get the client's body, its limits included: the prefill engine's sampled token, with its probabilities if they were
asked for, goes to the decode engine along with the KV. The prefill leg's own answer is dropped. Neither engine takes a
request without a room, so after a failed hand-over only another pair of engines can serve it.
"""

from __future__ import annotations

from random import Random

from gateway.api.body import JsonBody
from gateway.proxy.serving.connectors.contract import Pair

ROOMS = 2**63
"""Rooms are signed 64-bit integers; SGLang's own router draws them so."""


class Sglang:
    at_once = True
    decode_can_compute = False

    def __init__(self, random: Random) -> None:
        self._random = random

    async def open(self, pair: Pair) -> SglangTransfer:
        host = pair.prefill.engine.host
        return SglangTransfer(host, pair.bootstrap_port, self._random.randrange(ROOMS))


class SglangTransfer:
    lease: float | None = None
    notices_death = True

    def __init__(self, host: str, port: int, room: int) -> None:
        self._fields = {"bootstrap_host": host, "bootstrap_port": port, "bootstrap_room": room}

    def prefill(self, body: JsonBody) -> JsonBody:
        leg = self._meet(body)
        leg.set("stream", False)  # its answer is read whole, to see whether it is one
        leg.drop("stream_options")
        return leg

    def decode(self, body: JsonBody, answer: bytes) -> JsonBody:
        return self._meet(body)

    def _meet(self, body: JsonBody) -> JsonBody:
        leg = body.copy()
        for name, value in self._fields.items():
            leg.set(name, value)
        return leg
