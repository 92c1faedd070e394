"""Reads an answer until it is committed: its first event, or, unstreamed, its whole body.

Nothing here knows the client: a failure is a ``LegFailed``, and the leg may be sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.api.encoding import Inflater, Undecodable, decoded
from gateway.api.events import MAX_EVENT, EventObserver
from gateway.api.stream_usage import UsageRemover
from gateway.framework import Kind
from gateway.proxy.upstream.answer import Answer
from gateway.proxy.upstream.legs import ENGINE_DEAD, RETRY_STATUSES, Cause, DeferredError, LegFailed

MAX_HELD = 2 * MAX_EVENT
"""The most bytes of a stream that are held until it is committed: one event that announces the answer and one with
output, each of the longest length. Comments, which engines send every few seconds, never reach that."""

MAX_TEXT = 4 * 1024 * 1024
"""The most bytes to which a compressed whole answer is decompressed, to read its usage: eight times the text of 128 K
tokens, some 20 ms. A longer answer is forwarded all the same, and its usage is not known."""


def _nothing(data: bytes) -> None:
    """The observer of an unstreamed answer: does nothing."""


class Committed:
    """An answer that may be relayed. Whoever has one closes it.

    ``status``, ``headers``: of its head. ``data``: the whole body, or the bytes of a stream so far, unchanged.
    ``events``: the observer of the stream; None: it is not a stream. ``observe``: gets the stream's next bytes.
    ``usage_remover``: removes from it the usage that the client did not request. ``companion``: a prefill leg that
    still runs, and ends with this answer at the latest.
    """

    __slots__ = ("answer", "companion", "data", "events", "headers", "observe", "status", "usage_remover")

    def __init__(
        self,
        answer: Answer,
        data: bytes,
        events: EventObserver | None = None,
        observe: Callable[[bytes], None] = _nothing,
    ) -> None:
        self.answer = answer
        self.status = answer.status
        self.headers = answer.headers
        self.data = data
        self.events = events
        self.observe = observe
        self.usage_remover: UsageRemover | None = None
        self.companion: asyncio.Task[Committed] | None = None

    @property
    def text(self) -> bytes:
        """The whole body, or the bytes of a stream so far, decompressed to ``MAX_TEXT`` bytes at most. Empty if it
        cannot be decompressed."""
        if not self.answer.encoding:
            return self.data
        try:
            return decoded(self.data, self.answer.encoding, MAX_TEXT)
        except Undecodable:
            return b""

    @property
    def failed(self) -> bool:
        """Whether the engine failed: a 500, or a stream that begins with an error. vLLM reports in this way that it
        could not fetch a request's KV."""
        return self.status == 500 or (self.events is not None and _failed(self.events))

    def accompany(self, companion: asyncio.Task[Committed]) -> None:
        """Let a prefill leg continue beside this answer. Its result is ignored."""
        self.companion = companion
        companion.add_done_callback(lambda task: task.cancelled() or task.exception())

    def close(self) -> None:
        """Leave no connection behind: what is not complete is ended."""
        self.answer.abort()
        if self.companion is not None:
            self.companion.cancel()


async def commit(answer: Answer, kind: Kind, *, until_output: bool = False) -> Committed:
    """Read ``answer`` until it is committed. If that fails, closes it and raises LegFailed.

    ``until_output``: a stream is held until it has output, or has failed: vLLM announces an answer (a role,
    ``message_start``, ``response.created``) although it cannot fetch the request's KV.
    """
    try:
        if answer.status in RETRY_STATUSES:
            held = DeferredError(answer.status, answer.headers, await answer.read())
            raise LegFailed(Cause.STATUS, answer.endpoint, f"HTTP {answer.status}", held)
        if answer.is_event_stream:
            return await _stream(answer, kind, until_output)
        committed = Committed(answer, await answer.read())  # all within the head timeout: a part of it is of no use
        if answer.status == 500 and ENGINE_DEAD in committed.text:
            held = DeferredError(answer.status, answer.headers, committed.data)
            raise LegFailed(Cause.ENGINE_DEAD, answer.endpoint, "the engine says that it is dead", held)
        return committed
    except BaseException:
        answer.abort()
        raise


async def _stream(answer: Answer, kind: Kind, until_output: bool) -> Committed:
    events = EventObserver(kind)
    observe = _reading(events, answer)
    parts: list[bytes] = []
    held = 0
    while not _failed(events) and not (events.first_output if until_output else events.committed):
        try:
            data = await answer.chunk()
        except LegFailed as failure:
            failure.announced = events.committed
            raise
        if not data and events.committed:
            break
        if not data:
            raise LegFailed(Cause.GARBAGE, answer.endpoint, "a stream that ended without an event")
        parts.append(data)
        held += len(data)
        observe(data)
        if held > MAX_HELD:
            if not events.committed:
                raise LegFailed(Cause.GARBAGE, answer.endpoint, f"a stream of over {MAX_HELD} bytes without an event")
            break
    if events.error is not None and ENGINE_DEAD in events.error:
        raise LegFailed(Cause.ENGINE_DEAD, answer.endpoint, "the engine says that it is dead")
    answer.committed()
    return Committed(answer, b"".join(parts), events, observe)


def _reading(events: EventObserver, answer: Answer) -> Callable[[bytes], None]:
    """A function that observes the stream's bytes. Both raise LegFailed if the answer cannot be decompressed."""
    if not answer.encoding:
        return events.feed

    def observe(data: bytes) -> None:
        try:
            for part in inflater.slices(data):
                events.feed(part)
        except Undecodable as error:
            raise LegFailed(Cause.GARBAGE, answer.endpoint, str(error)) from error

    try:
        inflater = Inflater(answer.encoding)
    except Undecodable as error:
        raise LegFailed(Cause.GARBAGE, answer.endpoint, str(error)) from error
    return observe


def _failed(events: EventObserver) -> bool:
    """Whether the stream holds only an error, beside events that announce an answer."""
    return events.error is not None or events.early_error is not None
