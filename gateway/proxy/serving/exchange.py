"""One request from its head to its end: the owner of all that it holds.

Whatever happens, ``settle`` gives everything back exactly once: the permit, the memory, what the last attempt booked.
"""

from __future__ import annotations

from gateway.api.routes import Route
from gateway.core.observer import Observer
from gateway.flow.admission import Permit
from gateway.framework import Clock
from gateway.proxy.memory import Memory, Share
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.call import Call, IncomingRequest
from gateway.proxy.serving.decisions import DecisionRecord
from gateway.proxy.serving.hooks import AfterSettle
from gateway.proxy.serving.record import line
from gateway.proxy.serving.timeline import Timeline


class Exchange:
    """``share``: of the memory for bodies. ``incoming``: from when it is parsed; ``call``: the same once it is
    tokenized, and no attribute before. ``model_name``: empty where it is not known which. ``record``, ``attempt``:
    the last ones. None before there is one. ``after_settle``: of hooks."""

    __slots__ = (
        *("_observer", "_settled", "after_settle", "attempt", "call", "id", "incoming", "model_name", "permit"),
        *("record", "route", "share", "timeline"),
    )

    call: Call

    def __init__(self, request_id: str, route: Route, clock: Clock, memory: Memory, observer: Observer) -> None:
        """It has just come."""
        self.id = request_id
        self.route = route
        self.timeline = Timeline(clock, clock.monotonic())
        self.share = Share(memory)
        self.incoming: IncomingRequest | None = None
        self.model_name = ""
        self.permit: Permit | None = None
        self.record: DecisionRecord | None = None
        self.attempt: Attempt | None = None
        self.after_settle: list[AfterSettle] = []
        self._observer = observer
        self._settled = False

    def forget_prompt(self) -> None:
        """Its answer has begun and may take an hour: drop its body and its ids."""
        self.incoming = self.call = light = self.call.without_prompt()
        if self.attempt is not None:
            self.attempt.call = light
        self.share.release()

    def cancelled(self) -> None:
        """The client went away: 499 is what nginx logs for it. That its answer had broken before stays."""
        if self.attempt is None or self.attempt.broken is None:
            self.timeline.status, self.timeline.outcome = 499, "cancelled"
        self._observer.disconnected(self.model_name, str(self.timeline.phase))

    def settle(self) -> None:
        """Release, learn, count; once. Then what hooks have left for after it."""
        if self._settled:
            return
        self._settled = True
        try:
            if self.attempt is not None and not self.attempt.over:
                self.attempt.conclude()
        finally:
            self.share.release()
            if self.permit is not None:
                self.permit.release()
            settled = line(self.id, self.route, self.timeline, self.incoming, self.attempt)
            if self.record is not None:
                self.record.settled = settled
            self._observer.settled(settled)
        if self.timeline.outcome == "ok":
            for then in self.after_settle:
                then()
