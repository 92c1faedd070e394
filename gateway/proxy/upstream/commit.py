"""Reads an answer until it is committed: its first event, or, unstreamed, its whole body.

Nothing here knows the client: a failure is a ``LegFailed``, and the leg may be sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from gateway.api.encoding import Inflater, Undecodable, decoded
from gateway.api.events import MAX_EVENT, EventObserver
from gateway.api.stream_usage import UsageTaker
from gateway.framework import Kind
from gateway.proxy.upstream.answer import Answer
from gateway.proxy.upstream.legs import ENGINE_DEAD, RETRY_STATUSES, Cause, DeferredError, LegFailed

MAX_HELD = 2 * MAX_EVENT
"""Bytes of a stream that are held until it is committed: one that announces itself and then has output may take the
longest event for each. Comments, of which engines say one in some seconds, never come to that."""

MAX_TEXT = 4 * 1024 * 1024
"""Bytes of a compressed whole answer that are inflated, to see what is in it: eight times the text of 128 K tokens,
which are read within some 20 ms. A longer one passes as it came, and its usage is not known."""


def _nothing(data: bytes) -> None:
    """No stream, nothing to see."""


@dataclass(slots=True)
class Committed:
    """An answer that may be relayed; a context manager that leaves no connection behind.

    ``data``: the whole body, or what has come of a stream, as it came. ``events``: what was seen in it; None: it is no
    stream. ``observe``: reads on in it. ``taker``: takes out of it what its client did not ask for.
    ``companion``: a prefill leg that still runs, and ends with this answer at the latest.
    """

    answer: Answer
    data: bytes
    events: EventObserver | None = None
    observe: Callable[[bytes], None] = _nothing
    taker: UsageTaker | None = None
    companion: asyncio.Task[Committed] | None = None

    @property
    def text(self) -> bytes:
        """The whole body, or what has come of a stream, as it reads; of one that is compressed ``MAX_TEXT`` bytes at
        most. Empty where that cannot be told."""
        try:
            return decoded(self.data, self.answer.encoding, MAX_TEXT)
        except Undecodable:
            return b""

    @property
    def status(self) -> int:
        return self.answer.status

    @property
    def headers(self) -> list[tuple[str, str]]:
        return self.answer.headers

    @property
    def failed(self) -> bool:
        """An engine's own failure: a 500, or a stream that begins with an error. vLLM says nothing else when it cannot
        fetch a request's KV."""
        return self.status == 500 or (self.events is not None and _failed(self.events))

    def accompany(self, companion: asyncio.Task[Committed]) -> None:
        """Let a prefill leg run on beside this answer. How it ends is nobody's business any more."""
        self.companion = companion
        companion.add_done_callback(lambda task: task.cancelled() or task.exception())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.answer.abort()
        if self.companion is not None:
            self.companion.cancel()


async def commit(answer: Answer, kind: Kind, *, until_output: bool = False) -> Committed:
    """Read ``answer`` until it may be the client's. Raises LegFailed, and closes it, if that does not come.

    ``until_output``: a stream is held until it has output, or has failed: vLLM announces an answer (a role,
    ``message_start``, ``response.created``) although it cannot fetch the request's KV.
    """
    try:
        if answer.status in RETRY_STATUSES:
            held = DeferredError(answer.status, answer.headers, await answer.read())
            raise LegFailed(Cause.STATUS, answer.endpoint, f"HTTP {answer.status}", held)
        return await (_stream(answer, kind, until_output) if answer.is_event_stream else _whole(answer))
    except BaseException:
        answer.abort()
        raise


async def _whole(answer: Answer) -> Committed:
    committed = Committed(answer, await answer.read())  # all of it within ``head``: it is of no use before
    if answer.status == 500 and ENGINE_DEAD in committed.text:
        held = DeferredError(answer.status, answer.headers, committed.data)
        raise LegFailed(Cause.ENGINE_DEAD, answer.endpoint, "the engine says that it is dead", held)
    return committed


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
    """Raises LegFailed where the answer's coding cannot be read along, and so does what it returns."""
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
    """An error is all that has come, but for what announces an answer."""
    return events.error is not None or events.early_error is not None
