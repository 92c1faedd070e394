"""One request from its head to its end: the owner of all that it holds.

Whatever happens, ``settle`` gives everything back exactly once: the permit, the memory, what the last attempt booked.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.api.routes import Route
from gateway.core.observer import Observer
from gateway.flow.admission import Permit
from gateway.proxy.memory import Share
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.call import Call, IncomingRequest
from gateway.proxy.serving.decisions import DecisionRecord
from gateway.proxy.serving.hooks import AfterSettle
from gateway.proxy.serving.record import line
from gateway.proxy.serving.timeline import Timeline


@dataclass(slots=True, eq=False)
class Exchange:
    """``share``: of the memory for bodies. ``incoming``: from when it is parsed; ``call``: the same once it is
    tokenized, and no attribute before. ``model_name``: empty where it is not known which. ``record``, ``attempt``:
    the last ones. None before there is one. ``after_settle``: of hooks."""

    id: str
    route: Route
    timeline: Timeline
    share: Share
    observer: Observer
    incoming: IncomingRequest | None = None
    call: Call = field(init=False)
    model_name: str = ""
    permit: Permit | None = None
    record: DecisionRecord | None = None
    attempt: Attempt | None = None
    after_settle: list[AfterSettle] = field(default_factory=list)
    _settled: bool = field(default=False, repr=False)

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
        self.observer.disconnected(self.model_name, str(self.timeline.phase))

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
            self.observer.settled(settled)
        if self.timeline.outcome == "ok":
            for then in self.after_settle:
                then()
