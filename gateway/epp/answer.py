"""What a gateway tells of an answer that it carries, and what becomes of the request's booking by it.

All of it is synchronous, within the call in which the event loop reads the gateway's message: what is free again is so
before the client can see the end. The request's own task waits for ``done``.

What a gateway tells depends on its modes; how its call ends says little (docs/envoy.md). Where it tells nothing of the
end, that is predicted by the cost model: the work stays booked until then, and nothing is learned from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from gateway.api.events import EventObserver
from gateway.api.responses import read_id
from gateway.api.stream_usage import REFUSALS, UsageRemover, refuses
from gateway.api.usage import read_usage
from gateway.errors import Exhausted
from gateway.framework import Endpoint
from gateway.framework.request import PREFILL
from gateway.proxy.memory import Share
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.client import ClientGone
from gateway.proxy.serving.relay import LARGE, UNSEEN
from gateway.proxy.serving.timeline import ENDED, UNHEARD, Event
from gateway.proxy.upstream.legs import Cause, LegFailed

MOST_KEPT = 4 * 1024 * 1024
"""Bytes of an unstreamed answer that are kept to read its usage: eight times the text of 128 K tokens. Of a longer one
it is not known, nor where all that is kept is ``listen.max_held`` already."""

VIA_UPSTREAM = "via_upstream"
"""Envoy's ``response.code_details`` of an answer that an endpoint gave; any other is its own."""

CAUSES: Sequence[tuple[str, Cause | None]] = (
    ("{overflow}", None),  # a circuit breaker of the gateway's own
    ("connection_timeout", Cause.CONNECT_TIMEOUT),
    ("connection_failure", Cause.REFUSED),
    ("upstream_reset_before_response_started", Cause.DIED),
    ("upstream_response_timeout", Cause.HEAD_TIMEOUT),
    ("upstream_per_try_timeout", Cause.HEAD_TIMEOUT),
    ("response_timeout", Cause.HEAD_TIMEOUT),
)
"""What a part of ``response.code_details`` means of the endpoint; the first that fits counts."""


class Carried(Protocol):
    """What an answer reports to."""

    def began(self, endpoint: Endpoint) -> None:
        """An endpoint's answer has come."""

    def finished(self, endpoint: Endpoint) -> None:
        """It is complete."""

    def failed(self, failure: LegFailed) -> None:
        """No answer could be had of an endpoint."""

    def moved(self, attempt: Attempt, served: str) -> Attempt:
        """The gateway tells that ``served``, an address, answers: the booking as it is there. ``attempt`` where that is
        known already, or no endpoint of ours."""
        ...

    def kept(self, response: str, endpoint: Endpoint) -> None:
        """``endpoint`` keeps this response, from which a client may go on."""

    def usage_refused(self, endpoint: Endpoint) -> None:
        """It refuses the request for its usage, which its client did not make."""


class HeardAnswer:
    """The answer to one request. A context manager that gives back what is booked for it when an error ends it.

    ``reads``: its body will be told, and is used. ``remover``: removes the usage that only the picker has requested;
    None: it has not. ``keeps``: the engine may keep it as a response, whose id is noted. All are set before it is told
    of anything. ``is_observed``: another call than its own tells of it, and of its end. ``done``: when nothing is
    booked any more; its exception ends the request. ``whole``: its headers have come, and it is no stream: an engine
    sends both when the work is done.
    """

    __slots__ = (
        *("_carried", "_events", "_kept", "_prefill", "_share", "_size", "_timer", "_unseen", "attempt", "done"),
        *("is_observed", "keeps", "reads", "remover", "status", "whole"),
    )

    def __init__(self, carried: Carried, attempt: Attempt, share: Share) -> None:
        """``share``: of the request's own; counts what is kept of its answer from now on."""
        self.attempt = attempt
        self._share = share
        self.reads = self.keeps = self.is_observed = False
        self.remover: UsageRemover | None = None
        self.status = 0
        self.whole = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._carried = carried
        self._events: EventObserver | None = None
        self._unseen: list[bytes] = []
        self._kept: list[bytes] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._prefill: asyncio.TimerHandle | None = None

    def __enter__(self) -> HeardAnswer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        for timer in (self._timer, self._prefill):
            if timer is not None:
                timer.cancel()
        self._timer = self._prefill = None
        self.attempt.__exit__(kind, error, None)

    @property
    def over(self) -> bool:
        """Nothing is booked any more."""
        return self.attempt.over

    def head(self, status: int, headers: Sequence[tuple[str, str]], *, served: str = "", details: str = "") -> None:
        """Its headers have come. ``served``: the address that answers; ``details``: Envoy's word for who made the
        answer; empty where the gateway does not say."""
        if self.over or self.status:
            return
        try:
            self._head(status, headers, served, details)
        except Exception as error:
            self.broke(error)

    def _head(self, status: int, headers: Sequence[tuple[str, str]], served: str, details: str) -> None:
        self.status = status
        if details and details != VIA_UPSTREAM:
            self._made_by_gateway(details)
            return
        if served:
            self.attempt = self._carried.moved(self.attempt, served)
        self._carried.began(self.attempt.plan.decode)
        named = dict(headers)
        if named.get("content-encoding", "identity") != "identity":
            self.reads, self.remover = False, None  # it can pass only as it comes
        streams = named.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream"
        self.whole = not (streams and status == 200)
        if streams and status == 200:
            self.attempt.timeline.happened(Event.STREAM_COMMITTED)
            self.attempt.timeline.status = status
            if self.reads:
                self._events = EventObserver(self.attempt.call.route.kind)

    def observed(self) -> None:
        """A second filter tells of it from now on, beside its own call or after that."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.is_observed = True
        if not self.status:
            self.reads = True

    def part(self, data: bytes, *, last: bool) -> bytes:
        """The next part of its body; returns what passes to the client, also if it cannot be read. ``last``: nothing
        follows."""
        passing = data
        try:
            if self._events is not None and self.remover is not None:
                passing = self.remover.feed(data)
                if last:
                    passing += self.remover.end()
            if not self.over:
                self._read(data, last)
        except Exception as error:
            self.broke(error)
        return passing

    def _read(self, data: bytes, last: bool) -> None:
        if not self.reads:
            if last:
                self._end_unread()
            return
        if self._events is None:
            self._save(data)
        elif data:
            self._unseen.append(data)
            if len(self._unseen) >= UNSEEN or len(data) > LARGE or not self._events.first_output:
                self._look(self._events)
        if last:
            self._end()

    def _save(self, data: bytes) -> None:
        """Keep a part of an unstreamed answer, as long as it is small and there is room."""
        self._size += len(data)
        if self._size <= MOST_KEPT:
            try:
                self._share.take(len(data))
            except Exhausted:
                self._size = MOST_KEPT + 1
            else:
                self._kept.append(data)
                return
        self._kept.clear()
        self._share.release()

    def held(self) -> bytes:
        """What has come and did not pass, of an answer of which no more is told."""
        return b"" if self._events is None or self.remover is None else self.remover.end()

    def trailers(self) -> bytes:
        """Its trailers have come: it is complete. Returns what did not pass."""
        return self.part(b"", last=True)

    def closed(self) -> None:
        """The gateway has done with the request: its answer has ended, or its client has left."""
        if self.over:
            return
        if self.reads:
            self._fail(ClientGone())
        else:
            self._end_unread()

    def silent(self) -> None:
        """The gateway tells no more, and the answer goes on: its end is when it is predicted, unless it is observed.
        Where it came as a whole it is over: Envoy resets the call then in `ends`, too, as it has no more to tell."""
        if self.over or self._timer is not None or self.is_observed:
            return
        if self.whole:
            self._end_unread()
            return
        attempt = self.attempt
        call, now = attempt.call, attempt.timeline.clock.monotonic()
        steps = call.request.expected_output / max(1, call.sequences)
        left = attempt.placement.decode.seconds_left(now, steps)
        if self._prefill is not None:
            left += max(0.0, self._prefill.when() - asyncio.get_running_loop().time())
        self._timer = asyncio.get_running_loop().call_later(left, self.hurry)

    def hurry(self) -> None:
        """No more will be heard of it: give back what is booked."""
        if not self.over:
            self.attempt.not_told(UNHEARD, self.status)
            self._finish()

    def broke(self, error: BaseException) -> None:
        """A defect of ours."""
        self._fail(error)

    # A prefill leg, which the decode engine's sidecar sends

    def presume_prefill(self) -> None:
        """No first token will be told: the prompt is computed on the other engine when that is predicted."""
        work = self.attempt.placement.computes
        work.unreported()
        if work.predicted is not None:
            self._prefill = asyncio.get_running_loop().call_later(work.predicted, self._prefilled)

    def _prefilled(self) -> None:
        if self._prefill is not None:
            self._prefill.cancel()
            self._prefill = None
        if PREFILL in self.attempt.under_way:
            self.attempt.prefilled("ok")

    # Its end

    def _look(self, events: EventObserver) -> None:
        if self._unseen:
            data = b"".join(self._unseen)
            self._unseen.clear()
            events.feed(data)
            if self.keeps:
                self._kept.append(data)
                if events.committed:
                    self._keep(b"".join(self._kept), stream=True)
                    self._kept.clear()
        if events.first_output:
            self._prefilled()
        self.attempt.progressed(events.outputs)

    def _end(self) -> None:
        attempt, events = self.attempt, self._events
        self._prefilled()
        if events is not None:
            self._look(events)
            failed = events.error is not None or events.late_error is not None
            attempt.answered(self.status, events.usage, error=failed, apart=events.apart)
        else:
            text = b"".join(self._kept) if self._size <= MOST_KEPT else b""
            self._kept.clear()
            self._share.release()
            if self.keeps and self.status == 200:
                self._keep(text, stream=False)
            if self.remover is not None and self.status in REFUSALS and refuses(text):
                self._carried.usage_refused(attempt.plan.decode)
            usage = read_usage(text, attempt.call.route.kind) if self.status == 200 and text else None
            attempt.answered(self.status, usage)
        self._carried.finished(attempt.plan.decode)
        self._finish()

    def _keep(self, text: bytes, *, stream: bool) -> None:
        self.keeps = False
        if (response := read_id(text, stream=stream)) is not None:
            self._carried.kept(response, self.attempt.plan.decode)

    def _end_unread(self) -> None:
        self._prefilled()
        if self.status >= 400:
            self.attempt.answered(self.status, None)
        else:
            self.attempt.not_told(ENDED, self.status)
        if self.status:
            self._carried.finished(self.attempt.plan.decode)
        self._finish()

    def _made_by_gateway(self, details: str) -> None:
        """The gateway itself has answered the client: no endpoint did."""
        attempt, timeline = self.attempt, self.attempt.timeline
        cause = next((cause for part, cause in CAUSES if part in details), None)
        failure = LegFailed(cause or Cause.RESET_UNSENT, attempt.plan.decode, details)
        if cause is not None:
            self._carried.failed(failure)
        timeline.ended_by(failure.error())
        timeline.status, timeline.error = self.status, f"the gateway answered: {details}"
        timeline.charge()
        attempt.end(failure.result if cause is not None else "gateway")
        self._finish()

    def _fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.done.done():
            self.done.set_result(None)
