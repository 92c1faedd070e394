"""Which streams an engine is asked to tell the usage of, and what is known of engines that are asked.

An engine that does not take the field is noticed once: its process is asked no more, and where it cannot be told from
the next one, only for a while.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import inf
from weakref import WeakKeyDictionary

from gateway.api.body import Body, JsonBody
from gateway.api.indivisible import ONE
from gateway.api.prompts import NULL
from gateway.api.stream_usage import KINDS, UsageTaker, include_usage
from gateway.framework import Clock, Endpoint, Engine
from gateway.proxy.extras.not_asked import NotAsked
from gateway.proxy.serving.call import Call

log = logging.getLogger("kvgate.usage")

AGAIN = 600.0
"""Seconds after which an engine that does not tell when it was started is asked again: it may be another process since
then. A refusal costs its client one round trip."""

_ASKED = "usage"


@dataclass(slots=True)
class _Known:
    """Of one process of an engine. ``started``: as ``Engine.started``. ``fingerprint``: what it puts on the end of a
    choice, as JSON, empty for nothing; None: not known."""

    started: float | None
    fingerprint: bytes | None = None


class StreamUsage:
    """Outlives configurations, since what it knows is of engines."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._engines: WeakKeyDictionary[Engine, _Known] = WeakKeyDictionary()
        self._refused = NotAsked()

    def ask(self, call: Call, endpoint: Endpoint, body: Body) -> JsonBody | None:
        """A copy of ``body`` that asks the engine at ``endpoint`` for its stream's usage; None: as it is, it does, or
        it shall not."""
        if not call.request.stream or not isinstance(body, JsonBody):
            return None
        if call.route.kind not in KINDS:
            return None
        if self._refused.has(endpoint.engine, _ASKED, self._clock.monotonic()):
            return None
        known = self._of(endpoint)
        # Where several choices end, the first must not wait for the stream's end to learn the fingerprint.
        if known.fingerprint is None and not _is_single(call):
            return None
        options = include_usage(body.fields)
        if options is None:
            return None
        leg = body.copy()
        leg.set("stream_options", options)
        return leg

    def taker(self, call: Call, endpoint: Endpoint) -> UsageTaker:
        """What takes the usage out of the stream that ``ask`` led to."""
        known = self._of(endpoint)

        def learn(fingerprint: bytes) -> None:
            known.fingerprint = fingerprint

        return UsageTaker(single=_is_single(call), fingerprint=known.fingerprint or b"", learn=learn)

    def refused(self, endpoint: Endpoint, why: str) -> None:
        """The engine is not asked any more, until it starts anew."""
        now, engine = self._clock.monotonic(), endpoint.engine
        if not self._refused.has(engine, _ASKED, now):
            self._refused.begin(engine, _ASKED, now + AGAIN if engine.started is None else inf)
            log.warning(
                "engine %s %s: its streams are not asked for their usage, and those of clients that do not ask tell "
                "nothing of cache hits",
                engine.name,
                why,
            )

    def _of(self, endpoint: Endpoint) -> _Known:
        engine = endpoint.engine
        known = self._engines.get(engine)
        if known is None or known.started != engine.started:
            known = self._engines[engine] = _Known(engine.started)
        return known


def _is_single(call: Call) -> bool:
    """One choice will be in the stream. An ``n`` that is no number to us may be one to the engine."""
    assert isinstance(call.body, JsonBody)
    return call.prompt.single and call.body.fields.get("n", NULL) in (NULL, ONE)
