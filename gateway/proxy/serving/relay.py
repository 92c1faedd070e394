"""Relays a committed answer to the client: bytes are observed, and not rewritten but for usage that only we asked for.

From here on a failure ends the stream with an error event, never with another engine. A part of a stream is framed
within the call in which the engine's socket brought it, and written at the end of the loop's turn. Its content is
observed at once until the first output, then several parts at a time.
"""

from __future__ import annotations

import contextlib

from gateway.api.errors import sse_error
from gateway.api.events import EventObserver
from gateway.api.headers import to_client
from gateway.api.usage import read_usage
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.client import Client, ClientGone, Reply
from gateway.proxy.serving.timeline import Event, Timeline
from gateway.proxy.upstream.commit import Committed
from gateway.proxy.upstream.legs import DeferredError, LegFailed

UNSEEN = 16
"""Parts of a stream that are observed at once, since each look costs more than a part: as many as tokens are entered
in the ledger at once."""

LARGE = 1024
"""Bytes of a part that is not kept to be observed with others: 16 of them are no more than the observer keeps."""

SLICE = 256 * 1024
"""Bytes of an unstreamed answer that are written at once: what waits for a slow client is not copied as a whole."""


async def relay(committed: Committed, client: Client, attempt: Attempt, *, idle: float) -> None:
    """Hand ``committed`` to the client. ``idle``: seconds that it may take nothing. Raises ClientGone."""
    if committed.events is not None:
        await _stream(committed, committed.events, client, attempt, idle)
        return
    usage = None
    if committed.status == 200:
        text = committed.text if committed.answer.encoding else committed.data
        usage = read_usage(text, attempt.call.route.kind)
    attempt.answered(committed.status, usage)
    await _whole(committed.status, to_client(committed.headers) + attempt.headers(), committed.data, client, idle)


async def relay_held(held: DeferredError, client: Client, timeline: Timeline, request_id: str, *, idle: float) -> None:
    """An engine's error that no other endpoint bettered, unchanged. Raises ClientGone."""
    timeline.answered(held.status, None, error=True)
    passing = to_client(held.headers)
    passing.append(("x-request-id", request_id))
    if timeline.grant is not None:
        passing += timeline.grant.headers()
    await _whole(held.status, passing, held.body, client, idle)


async def _stream(committed: Committed, events: EventObserver, client: Client, attempt: Attempt, idle: float) -> None:
    attempt.timeline.happened(Event.STREAM_COMMITTED)
    attempt.timeline.status = committed.status
    reply = client.reply(committed.status, to_client(committed.headers) + attempt.headers(), length=None)
    stream = _Stream(committed, reply, events, attempt, idle)
    try:
        stream.begin(committed.data)
        await committed.answer.flow(stream)
    except LegFailed as failure:
        stream.close()
        attempt.broke(failure)
        if committed.answer.encoding:  # nothing can be said in the middle of it
            reply.cut()
            return
        said = sse_error(failure.error(), attempt.call.route.dialect, partial=events.partial)
        reply.send(stream.held() + said, last=True)
    finally:
        stream.close()
    try:
        await reply.taken(idle)
    except TimeoutError as error:
        raise ClientGone from error


class _Stream:
    """Writes what comes of ``answer``, and stops it while the client has enough; ends it after ``idle`` seconds in
    which the client took nothing."""

    def __init__(
        self, committed: Committed, reply: Reply, events: EventObserver, attempt: Attempt, idle: float
    ) -> None:
        self._answer = committed.answer
        self._observe = committed.observe
        self._usage_remover = committed.usage_remover
        self._reply = reply
        self._events = events
        self._attempt = attempt
        self._idle = idle
        self._unseen: list[bytes] = []

    def begin(self, data: bytes) -> None:
        """``data``: what has come so far, and was observed."""
        self._reply.attend(self._stop, self._give_up)
        self._reply.send(data if self._usage_remover is None else self._usage_remover.feed(data), last=False)
        self._look()

    def part(self, data: bytes) -> None:
        unseen = self._unseen
        unseen.append(data)
        try:
            passing = data if self._usage_remover is None else self._usage_remover.feed(data)
            if passing:
                self._reply.part(passing)
            if len(unseen) >= UNSEEN or len(data) > LARGE or not self._events.first_output:
                self._look()
        except Exception as error:
            self._answer.abort(error)

    def end(self, data: bytes) -> None:
        # Settled before its client can see the end: who asks at once finds what this one took free.
        self._unseen.append(data)
        self._look()
        events = self._events
        failed = events.error is not None or events.late_error is not None
        self._attempt.answered(self._answer.status, events.usage, error=failed, apart=events.apart)
        self._reply.forget()  # there is nothing left to stop
        if self._usage_remover is not None:
            data = self._usage_remover.feed(data) + self._usage_remover.end()
        self._reply.send(data, last=True)

    def held(self) -> bytes:
        """What has come and did not pass, of a stream that broke."""
        return b"" if self._usage_remover is None else self._usage_remover.end()

    def close(self) -> None:
        """It has ended, in whichever way. What came of it is counted."""
        self._reply.forget()
        with contextlib.suppress(LegFailed):  # it is known to be broken
            self._look()

    def _look(self) -> None:
        """Observe what has come since the last time. Raises LegFailed where that cannot be read."""
        if self._unseen:
            data = b"".join(self._unseen)
            self._unseen.clear()
            self._observe(data)
        self._attempt.progressed(self._events.outputs)

    def _stop(self) -> None:
        self._answer.pause()
        self._reply.watch(self._idle, self._answer.resume, self._give_up)

    def _give_up(self) -> None:
        self._answer.abort(ClientGone())


async def _whole(status: int, passing: list[tuple[str, str]], body: bytes, client: Client, idle: float) -> None:
    reply = client.reply(status, passing, length=len(body))
    try:
        if len(body) <= SLICE:
            if reply.send(body, last=True):
                await reply.taken(idle)
            return
        for start in range(0, len(body), SLICE):
            if reply.send(body[start : start + SLICE], last=start + SLICE >= len(body)):
                await reply.taken(idle)
    except TimeoutError as error:
        raise ClientGone from error
