"""Decides for which streams the gateway requests the usage from an engine, and remembers how each engine answers.

If an engine refuses the field, its process is not asked again. If the engine does not report when it was started, it is
asked again after a while.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import inf
from weakref import WeakKeyDictionary

from gateway.api.body import Body, JsonBody
from gateway.api.indivisible import ONE
from gateway.api.prompts import NULL
from gateway.api.stream_usage import KINDS, UsageRemover, include_usage
from gateway.framework import Clock, Endpoint, Engine
from gateway.proxy.serving.call import Call
from gateway.proxy.serving.not_asked import NotAsked

log = logging.getLogger("kvgate.usage")

AGAIN = 600.0
"""Seconds after which an engine without a reported start time is asked again: it may be another process by then. A
refusal costs its client one round trip."""

_ASKED = "usage"


@dataclass(slots=True)
class _Known:
    """What is known of one process of an engine. ``started``: as ``Engine.started``. ``fingerprint``: the fingerprint
    in the event that ends a choice, as JSON; empty: it has none; None: not known."""

    started: float | None
    fingerprint: bytes | None = None


class StreamUsage:
    """Outlives a configuration, since its knowledge is about engines."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._engines: WeakKeyDictionary[Engine, _Known] = WeakKeyDictionary()
        self._refused = NotAsked()

    def ask(self, call: Call, endpoint: Endpoint, body: Body) -> JsonBody | None:
        """A copy of the stream's ``body`` that requests its usage; None: ``body`` already requests it, or must not."""
        if not isinstance(body, JsonBody):
            return None
        if call.route.kind not in KINDS:
            return None
        if self._refused.has(endpoint.engine, _ASKED, self._clock.monotonic()):
            return None
        known = self._of(endpoint)
        # With several choices the first one's end cannot wait for the end of the stream, where the fingerprint is.
        if known.fingerprint is None and not _is_single(call):
            return None
        options = include_usage(body.fields)
        if options is None:
            return None
        leg = body.copy()
        leg.set("stream_options", options)
        return leg

    def remover(self, call: Call, endpoint: Endpoint) -> UsageRemover:
        """Removes the usage from a stream whose body came from ``ask``."""
        known = self._of(endpoint)

        def learn(fingerprint: bytes) -> None:
            known.fingerprint = fingerprint

        return UsageRemover(single=_is_single(call), fingerprint=known.fingerprint or b"", learn=learn)

    def refused(self, endpoint: Endpoint, why: str) -> None:
        """Do not ask the engine again until it restarts."""
        now, engine = self._clock.monotonic(), endpoint.engine
        if not self._refused.has(engine, _ASKED, now):
            self._refused.begin(engine, _ASKED, now + AGAIN if engine.started is None else inf)
            log.warning(
                "engine %s %s: the usage of its streams is not requested any more, so that streams of clients that do "
                "not request it report no cache hits",
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
    """Whether the stream will have a single choice. An ``n`` that we cannot read may be a number to the engine."""
    assert isinstance(call.body, JsonBody)
    return call.prompt.single and call.body.fields.get("n", NULL) in (NULL, ONE)
