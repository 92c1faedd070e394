"""A client's connection: aiohttp reads and keeps it, and this file is all that leans on how aiohttp does that.

In the place of aiohttp's ``RequestHandler.start``, which makes a task, a request and a writer for each request, its
requests are answered one after the other within the connection's own task. What is leaned on, which aiohttp does not
promise, is held by tests/proxy/http/test_reply.py, test_heads.py and tests/proxy/test_framing.py:

- ``data_received`` appends what the parser makes to ``_messages``, counts it in ``_request_count``, and wakes
  ``_waiter``; the parser is ``_parser``, and nothing else keeps what came;
- ``start`` is the connection's task; a connection that is lost cancels it (``handler_cancellation``), one that is
  closed cancels ``_waiter``; ``_close`` and ``_force_close`` say that no further request is read;
- ``_task_handler`` is that task, and None once it has ended by itself;
- ``_process_keepalive``, on the timer ``_keepalive_handle``, closes at ``_next_keepalive_close_time`` a connection that
  waits for a request;
- ``_upgraded``: what comes behind a request for another protocol is kept in ``_message_tail`` and not parsed;
- ``_buffer_paused`` and ``_reading_paused``: nothing is read from the socket. ``_resume_reading_if_drained`` ends that,
  once no more than ``_msg_queue_resume_size`` requests wait. A body that is complete calls ``resume_reading`` without
  ``resume_parser``, whether ``_reading_paused`` or not;
- the parser stops behind a body where it counts many requests, and goes on with the next ``data_received``, which
  aiohttp's own reading of a body calls. Reading is not paused any more once the body is complete. It counts too many
  once a request was taken (``message_consumed``) before its body was complete;
- a body's ``_eof`` says that it is complete, its ``_exception`` that it is broken, and its ``_buffer`` holds what came
  and was not read. ``EMPTY_PAYLOAD`` is the body of each request that has none;
- where another protocol has the transport (linger.py), ``connection_lost`` and ``shutdown``, which closes
  ``self.transport``, are all that it still needs. ``_parser`` may be None then.
"""

from __future__ import annotations

import asyncio
import logging
from math import inf
from typing import Any, Protocol, cast

from aiohttp import EMPTY_PAYLOAD, StreamReader, http_exceptions, web
from aiohttp.http import HttpVersion10, RawRequestMessage

from gateway.core.pauses import LATE, TURN
from gateway.proxy.http.door import HttpClient
from gateway.proxy.http.heads import MAX_HEAD, Refusing, Unfinished
from gateway.proxy.http.linger import Lingering
from gateway.proxy.http.reply import HttpReply, Outbox
from gateway.proxy.http.write_progress import has_unread, unwritten
from gateway.proxy.http.written import WrittenConnection
from gateway.proxy.serving.stages import Stages

log = logging.getLogger("kvgate.server")

KEEP_ALIVE = 75.0
"""Seconds that an idle client connection is kept: nginx's default."""

REST = 5.0
"""Seconds in which the rest of a refused body is read and dropped, so that its client can send another request."""


BLANK_LINE = 2
"""Bytes that some old clients send behind a request, and that begin no other one."""


class Handler(Protocol):
    """Answers the requests of a connection."""

    async def handle(self, client: HttpClient) -> None:
        """Answer one request, or leave it without an answer: its connection is closed then."""

    def invalid(self, error: http_exceptions.HttpProcessingError) -> tuple[int, list[tuple[str, str]], bytes]:
        """The answer to what is no HTTP request: status, headers, body."""
        ...


class ClientConnection(WrittenConnection):
    """A connection whose requests ``handler`` answers. ``outbox``, ``stages``: of its loop. ``patience``: seconds for
    the head of its first request to come: aiohttp's own timer starts with the first answer.

    It keeps no more of a head than ``MAX_HEAD`` and what comes in one call: 431 is the answer to what becomes larger,
    and none where it is a body's trailers.

    ``leaving``: its next answer is its last. ``secure``: it is over TLS. ``may_be_large``: more than ``MAX_HEAD`` bytes
    have come at once; from then on each head of this connection is counted.
    """

    __slots__ = (
        *("_handler", "_miscounted", "_patience", "_refusing", "_sends_on", "_silence", "_since", "_unfinished"),
        *("_woken", "leaving", "may_be_large", "outbox", "secure", "stages"),
    )

    _silence: asyncio.TimerHandle

    def __init__(
        self, server: web.Server, handler: Handler, outbox: Outbox, stages: Stages, *, patience: float
    ) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=cast(Any, None),  # so that it writes none
            keepalive_timeout=KEEP_ALIVE,
            max_line_size=MAX_HEAD,
            max_field_size=MAX_HEAD,
            lingering_time=0,  # of aiohttp's own start
            auto_decompress=False,
        )
        self.outbox = outbox
        self.stages = stages
        self.secure = self.may_be_large = self._refusing = self._miscounted = self.leaving = False
        self._sends_on = False  # after the last answer
        self._woken = False  # a request has come, and the task has not run since
        self._since = self._loop.time()  # when it began to wait for a request
        self._handler = handler
        self._patience = patience
        self._unfinished = Unfinished()

    # Its requests

    async def start(self) -> None:
        """Answer what comes, until the connection closes."""
        try:
            while not self._force_close:
                if not self._messages:
                    self._waiter = self._loop.create_future()
                    try:
                        await self._waiter
                    finally:
                        self._waiter = None
                        if self._woken:
                            self._woken = False
                            self.stages.waiting -= 1
                message, body = self._messages.popleft()
                if self._parser is not None:
                    self._parser.message_consumed()
                    if body is not EMPTY_PAYLOAD and not body._eof:
                        self._miscounted = True
                if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size:
                    self._resume_reading_if_drained()
                self._silence.cancel()
                if not await self._answered(message, body) or self._force_close:
                    break
                self._since = self._loop.time()
                self._next_keepalive_close_time = due = self._since + KEEP_ALIVE
                if self._keepalive_handle is None:
                    self._keepalive_handle = self._loop.call_at(due, self._process_keepalive)
                if self._messages:  # thousands may have come in one packet: others have a turn between two of them
                    await asyncio.sleep(0)
        except Exception:
            log.exception("a client's connection failed by a defect of the gateway")
            self.force_close()
        except BaseException:
            self.force_close()
            raise
        if not self._force_close:
            self._task_handler = None
            self._finish()

    def leave(self, patience: float) -> bool:
        """In a shutdown: close it if it has waited for a request for ``patience`` seconds, and nothing of one has come,
        be it in the kernel only. Returns whether it is still open."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return False
        if self._task_handler is None:  # it lingers, so that its last answer arrives whole
            return patience > 0
        if self._waiter is None or self._woken or self._messages or self._unfinished.size > BLANK_LINE:
            return True
        if self._loop.time() - self._since < patience or has_unread(transport) or unwritten(transport):
            return True
        transport.close()
        return False

    def _finish(self) -> None:
        """The last answer was written: close the connection, now or when the client has stopped sending."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if not self._sends_on:
            transport.close()
            return
        self._messages.clear()
        self._unfinished.end()
        self._parser = None
        self.abort_if_stalled(KEEP_ALIVE)
        Lingering(transport, self)

    async def _answered(self, message: Any, body: StreamReader) -> bool:
        """Answer one request. True if another may follow."""
        transport = self.transport
        if transport is None:
            return False
        if not isinstance(message, RawRequestMessage):
            status, headers, said = self._handler.invalid(message.exc)
            reply = HttpReply(self, transport, status, headers, length=len(said), keep_alive=False)
            reply.send(said, last=True)
        else:
            client = HttpClient(message, body, self)
            await self._handler.handle(client)
            if client.answer is None:
                return False
            reply = client.answer
        if self._upgraded:
            self._decline()
        if body is not EMPTY_PAYLOAD and not body._eof and not self._force_close:
            await self._read_away(body)
        if reply.keep_alive and not self._close:
            return True
        self._sends_on = not (isinstance(message, RawRequestMessage) and _is_last(message) and body.is_eof())
        return False

    def arrived(self, body: StreamReader, limit: int) -> bytes | None:
        """All of a body of which nothing was read yet: it came with its head. None: it is still coming, is broken, or
        has more than ``limit`` bytes; it is left as it is then. aiohttp's own way to it is seven calls."""
        if body is EMPTY_PAYLOAD:
            return b""
        if not body._eof or body.total_bytes > limit or body._exception is not None:
            return None
        data = b"".join(body._buffer)
        body._buffer.clear()
        if self._miscounted:
            self.data_received(b"")  # the parser may hold requests behind this one
        return data

    def _decline(self) -> None:
        """A request to upgrade the protocol was answered in HTTP: the bytes after it are HTTP, too. Parse them."""
        if self._messages or self._parser is None:
            return
        self._parser.set_upgraded(False)
        self._upgraded = False
        tail, self._message_tail = self._message_tail, b""
        if tail:
            self.data_received(tail)
        if self._buffer_paused:
            self._resume_reading_if_drained()

    async def _read_away(self, body: StreamReader) -> None:
        """Read and drop the rest of a body, for ``REST`` seconds at most: many clients read no answer while they still
        send."""
        try:
            async with asyncio.timeout(REST):
                while not body.is_eof():
                    await body.readany()
        except (web.RequestPayloadError, TimeoutError, RuntimeError):
            self.close()

    # Its head

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.secure = transport.get_extra_info("sslcontext") is not None
        due = self._loop.time() + self._patience
        self._silence = self._loop.call_at(due, self._unheard, due)

    def _unheard(self, due: float) -> None:
        if (now := self._loop.time()) - due > LATE:  # this process was held up: first read what has arrived meanwhile
            self._silence = self._loop.call_at(now + TURN, self._unheard, inf)
        else:
            self.force_close()

    def data_received(self, data: bytes) -> None:
        count, unfinished = self._request_count, self._unfinished
        if len(data) + unfinished.size > MAX_HEAD:
            self.may_be_large = True
        super().data_received(data)
        if self._request_count != count:
            if self._waiter is not None and not self._woken:
                self._woken = True
                self.stages.waiting += 1
            message, body = self._messages[-1]
            if not isinstance(message, RawRequestMessage):  # an error, which the old parser would raise again
                unfinished.broke(cast(http_exceptions.HttpProcessingError, message.exc))
                self._refuse(refused=True)
            if body is EMPTY_PAYLOAD or body._eof:
                unfinished.size, unfinished.body = 0, None
            else:
                unfinished.head_came(body)
        elif self._upgraded or self._reading_paused or self._buffer_paused:
            return  # reading is paused, and aiohttp has not parsed these bytes yet
        elif not data or self._refusing:
            return
        elif not unfinished.came(len(data)):
            if unfinished.body is None:
                self._refuse(refused=False)
                super().data_received(b"")
            else:
                self.force_close()

    def resume_reading(self, resume_parser: bool = True) -> None:
        if self._reading_paused or resume_parser:  # else nothing is paused: most bodies come in one piece
            super().resume_reading(resume_parser)

    def _refuse(self, *, refused: bool) -> None:
        self._parser = cast(Any, Refusing(refused=refused))
        self._refusing = True

    def connection_lost(self, exc: BaseException | None) -> None:
        self._silence.cancel()
        self._unfinished.end()
        super().connection_lost(exc)


def _is_last(message: RawRequestMessage) -> bool:
    """Whether its client said that it sends no other request. HTTP/1.0 sends none before it has the answer."""
    return message.should_close or message.version == HttpVersion10
