"""Which streams an engine is asked to tell the usage of, and what is known of engines that are asked.

An engine that does not take the field is noticed once: its process is asked no more.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from gateway.api.body import Body, JsonBody
from gateway.api.indivisible import ONE
from gateway.api.prompts import NULL
from gateway.api.stream_usage import KINDS, UsageTaker, asking
from gateway.framework import Endpoint, Engine
from gateway.proxy.exchange import Exchange

log = logging.getLogger("kvgate.usage")


@dataclass(slots=True)
class _Known:
    """Of one process of an engine. ``started``: as ``Engine.started``. ``asked``: it is asked. ``fingerprint``: what it
    puts on the end of a choice, as JSON, empty for nothing; None: not known."""

    started: float | None
    asked: bool = True
    fingerprint: bytes | None = None


class StreamUsage:
    """Outlives configurations, since what it knows is of engines."""

    def __init__(self) -> None:
        self._engines: WeakKeyDictionary[Engine, _Known] = WeakKeyDictionary()

    def ask(self, exchange: Exchange, endpoint: Endpoint, body: Body) -> JsonBody | None:
        """A copy of ``body`` that asks the engine at ``endpoint`` for its stream's usage; None: as it is, it does, or
        it shall not."""
        if exchange.request is None or not exchange.request.stream or not isinstance(body, JsonBody):
            return None
        known = self._of(endpoint)
        if exchange.route.kind not in KINDS or not known.asked:
            return None
        # Where several choices end, the first must not wait for the stream's end to learn the fingerprint.
        if known.fingerprint is None and not _is_single(exchange):
            return None
        options = asking(body.fields)
        if options is None:
            return None
        leg = body.copy()
        leg.set("stream_options", options)
        return leg

    def taker(self, exchange: Exchange, endpoint: Endpoint) -> UsageTaker:
        """What takes the usage out of the stream that ``ask`` led to."""
        known = self._of(endpoint)

        def learn(fingerprint: bytes) -> None:
            known.fingerprint = fingerprint

        return UsageTaker(single=_is_single(exchange), fingerprint=known.fingerprint or b"", learn=learn)

    def refused(self, endpoint: Endpoint, why: str) -> None:
        """The engine is not asked any more, until it starts anew."""
        known = self._of(endpoint)
        if known.asked:
            known.asked = False
            log.warning(
                "engine %s %s: its streams are not asked for their usage, and those of clients that do not ask tell "
                "nothing of cache hits",
                endpoint.engine.name,
                why,
            )

    def _of(self, endpoint: Endpoint) -> _Known:
        engine = endpoint.engine
        known = self._engines.get(engine)
        if known is None or known.started != engine.started:
            known = self._engines[engine] = _Known(engine.started)
        return known


def _is_single(exchange: Exchange) -> bool:
    """One choice will be in the stream. An ``n`` that is no number to us may be one to the engine."""
    assert isinstance(exchange.body, JsonBody)
    one = exchange.prompt is not None and exchange.prompt.single
    return one and exchange.body.fields.get("n", NULL) in (NULL, ONE)
