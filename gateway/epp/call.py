"""One call of a gateway: its messages are what it does with one client's request, and each is answered here.

First comes the request, whole; it is answered once it is placed. Then comes what the gateway tells of the answer that
it carries: none of that is held up. How the call goes on and ends depends on the gateway's modes: docs/envoy.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from gateway.api.errors import render
from gateway.api.headers import request_id
from gateway.api.routes import Route, dialect_of, find
from gateway.core.log_limit import LogLimit, left_out
from gateway.core.tasks import TaskSet
from gateway.epp.answer import HeardAnswer
from gateway.epp.client import BodyMode, CallClient
from gateway.epp.destination import text_in
from gateway.epp.edits import (
    chunks,
    destination_edits,
    echoed,
    header_edits,
    routed_by_body,
    routed_by_headers,
)
from gateway.epp.messages import (
    BodyResponse,
    HeadersResponse,
    ProcessingRequest,
    ProcessingResponse,
    TrailersResponse,
    header_mutation,
    immediate,
    streamed_chunk,
)
from gateway.epp.names import BALANCER, SERVED
from gateway.epp.observing import Observing
from gateway.epp.picker import Picker
from gateway.epp.stream import Stream
from gateway.errors import Exhausted, GatewayError
from gateway.proxy.serving.client import ClientGone
from gateway.proxy.serving.stages import Stages
from gateway.proxy.upstream.legs import Leg

log = logging.getLogger("kvgate.picker")

ATTRIBUTES = "envoy.filters.http.ext_proc"
"""The namespace of what the gateway tells by its ``response_attributes``."""

ASKS = frozenset({"GET", "HEAD"})
"""Methods of requests that change nothing: without a body they may go to any endpoint."""


class Door(Protocol):
    """What a call needs of the door by which it came. ``picker``: in force. ``stages``, ``tasks``: of the loop.
    ``leaving``: it stops."""

    picker: Picker
    stages: Stages
    tasks: TaskSet
    often: LogLimit
    leaving: bool

    def make_id(self) -> str: ...

    def admit(self, client: CallClient, route: Route | None, assigned_id: str) -> None:
        """Find who sends the request. Raises GatewayError where it may not go on."""

    def routed(self, request_id: str, answer: HeardAnswer) -> None:
        """What a second filter tells of this request is told to ``answer``."""

    def find(self, request_id: str) -> HeardAnswer | None: ...

    def observe(self, request_id: str) -> None:
        """A second filter will tell of the answer to the request with this id; its call comes before the request."""

    def observed(self, request_id: str) -> None:
        """It tells no more."""

    def gone(self, call: PickerCall) -> None:
        """It is over, and its request has given everything back. May be told more than once."""


class PickerCall:
    """A ``stream.Handler``. ``client``: whose request it is, once its headers have come. ``answer``: what is told of
    the answer, once the request was routed. ``routed``: the gateway knows where the request goes."""

    __slots__ = (
        "_door",
        "_ended",
        "_observing",
        "_stream",
        "_task",
        "_waits",
        "answer",
        "client",
        "routed",
    )

    def __init__(self, door: Door, stream: Stream) -> None:
        self._door = door
        self._stream = stream
        self._task: asyncio.Task[None] | None = None
        self._ended = False
        self._waits = False  # counted among those that were not begun yet
        self._observing: Observing | None = None
        self.client: CallClient | None = None
        self.answer: HeardAnswer | None = None
        self.routed = False

    # What the transport tells

    def received(self, message: ProcessingRequest) -> None:
        if message.observability_mode or self._observing is not None:
            self._observe(message)
            return
        kind = message.WhichOneof("request")
        handle = HANDLERS.get(kind or "")
        if handle is None or (self.client is None) != (kind == "request_headers"):
            self._end(3, "a call begins with request_headers, and has them once")  # INVALID_ARGUMENT
            return
        try:
            handle(self, message)
        except Exception as error:
            if self.answer is None:
                raise
            self.answer.broke(error)  # of an answer: its client shall not lose it
            self._end()

    def half_closed(self) -> None:
        client = self.client
        if self._observing is not None:
            self._observing.ended()
            self._end()
        elif client is None:
            self._end()
        elif client.modes is None and (self.answer is None or not self.answer.status):
            # A gateway that has said all, and waits for the end of the call.
            client.ends = True
            client.feed(b"", last=True)
            if self.routed:
                self._let_go()
        elif self.routed:
            if self.answer is not None and not self.answer.is_observed:
                self.answer.closed()
            self._end()
        else:
            self._abandon()

    def gone(self, how: str) -> None:
        self._ended = True
        if self._observing is not None:
            self._observing.ended()
        elif not self.routed:
            self._abandon()
        elif self.answer is not None:
            if how.startswith(("reset", "drained")):  # Envoy's way of saying that it needs no more
                self.answer.silent()
            elif not self.answer.is_observed:
                self.answer.closed()
        self._look_over()

    # What the door tells

    def leave(self) -> None:
        """The picker stops: the call ends as soon as its request is answered. One through which the answer's body
        passes ends with that: the gateway keeps no copy of a part that is on its way to us, and it would be lost."""
        if self._observing is not None:
            self._observing.left()
            self._end()
        elif not self.routed:
            if self.client is not None:
                self.client.ends = True
        elif self._ended or not self._carries:
            self._let_go()

    def cut(self) -> None:
        """The time to leave is over."""
        if self.routed:
            self._let_go()
        elif self._task is not None:
            self._task.cancel()

    @property
    def _carries(self) -> bool:
        """Whether the answer's body passes through the call, read or not; so it may where the gateway says nothing."""
        client = self.client
        return client is not None and (client.modes is None or client.modes[1] == BodyMode.FULL)

    def _let_go(self) -> None:
        """End the call; the gateway goes on alone."""
        answer = self.answer
        if answer is not None and not self._ended and (rest := answer.held()):
            self._stream.send(echoed(rest, last=False))
        self._end()
        if answer is not None:
            if self._door.leaving:
                answer.hurry()
            else:
                answer.silent()

    # The request

    def _request_headers(self, message: ProcessingRequest) -> None:
        door = self._door
        client = self.client = CallClient(message, door.stages, self._route)
        client.ends = door.leaving
        if client.modes is not None and not client.bodyless:
            mode = client.modes[0]
            if mode in (BodyMode.NONE, BodyMode.PARTIAL):
                self._refuse(GatewayError("The gateway does not send whole bodies: set request_body_mode."), "")
                return
            if mode == BodyMode.BUFFERED:
                self._stream.send(ProcessingResponse(request_headers=HeadersResponse()))
        self._waits = True
        door.stages.waiting += 1
        self._task = door.tasks.start(self._serve(client), name="ask the picker", awaited=True)
        self._task.add_done_callback(self._served)

    def _request_body(self, message: ProcessingRequest) -> None:
        assert self.client is not None
        self.client.feed(message.request_body.body, last=message.request_body.end_of_stream)

    def _request_trailers(self, message: ProcessingRequest) -> None:
        assert self.client is not None
        self.client.trailers = True
        self.client.feed(b"", last=True)

    async def _serve(self, client: CallClient) -> None:
        """Raises nothing."""
        door, stages, assigned_id = self._door, client.stages, ""
        self._waits = False
        stages.waiting -= 1
        try:
            picker = door.picker
            assigned_id = request_id(client.fields.getall("x-request-id", ()), door.make_id)
            with picker.in_use():
                if client.bodyless and client.method in ASKS:
                    door.admit(client, None, assigned_id)
                    await picker.pass_on(client, assigned_id)
                    return
                route = find(client.method, client.path) if client.path else None
                door.admit(client, route, assigned_id)
                if route is None:
                    route = await picker.guess(client)
                await picker.handle(client, route, assigned_id)
        except GatewayError as error:
            self._refuse(error, assigned_id)
        except ClientGone:
            self._end()
        except asyncio.CancelledError:
            self._refuse(Exhausted("The gateway stops; try again.", retry_after=1), assigned_id)
        except Exception as error:
            if (count := door.often.admit(type(error).__name__)) is not None:
                log.exception("request %s failed by a defect of the gateway%s", assigned_id, left_out(count))
            self._refuse(GatewayError("The gateway failed; its log says how."), assigned_id)

    def _served(self, task: asyncio.Task[None]) -> None:
        """Its request has given everything back, or was never begun."""
        if self._waits:
            self._waits = False
            self._door.stages.waiting -= 1
        self._task = None
        self._look_over()

    def _route(self, destination: str, leg: Leg | None, answer: HeardAnswer | None) -> None:
        client = self.client
        assert client is not None
        self.routed, self.answer = True, answer
        if answer is not None:
            self._door.routed(client.header("x-request-id"), answer)
        self._send_on(client, destination, leg)
        # Where the picker came to stop after usage was requested, the answer passes here to be cleaned of it.
        cleans = answer is not None and answer.remover is not None and client.modes is not None
        if (client.ends and not cleans) or self._door.picker.hears == "request":
            self._let_go()

    def _send_on(self, client: CallClient, destination: str, leg: Leg | None) -> None:
        """The request, with its body if it has one."""
        stream = self._stream
        body, changed, removed = client.body, list[tuple[str, str]](), ["content-encoding"] * client.unzipped
        if leg is not None:
            body, (changed, removed) = leg.body, header_edits(client.fields.items(), leg.headers)
        if client.bodyless:
            stream.send(routed_by_headers(destination, destination_edits(destination, changed, removed)))
            return
        if client.buffered:
            edited = client.changed(body)
            edits = destination_edits(destination, changed, removed, length=len(body) if edited else None)
            stream.send(routed_by_body(destination, edits, body if edited else None))
            return
        client.forget()
        stream.send(routed_by_headers(destination, destination_edits(destination, changed, removed, length=len(body))))
        for part, last in chunks(body):
            stream.send(streamed_chunk(part, last=last and not client.trailers))
        if client.trailers:
            stream.send(ProcessingResponse(request_trailers=TrailersResponse()))

    def _refuse(self, error: GatewayError, assigned_id: str) -> None:
        """The gateway answers the client with ``error``. After the request was routed it cannot."""
        client = self.client
        if self.routed and self._carries:
            return  # its answer goes on, and shall lose nothing
        if self.routed or self._ended or client is None:
            self._end()
            return
        status, headers, body = render(error, dialect_of(client.path))
        told = [*headers.items(), ("x-request-id", assigned_id)] if assigned_id else list(headers.items())
        self._stream.send(immediate(status, told, body, details=f"kvgate_{error.outcome}"))
        self._end()

    def _abandon(self) -> None:
        """The client has left, or its gateway has."""
        if self._task is not None:
            self._task.cancel()
        self._end()

    def _observe(self, message: ProcessingRequest) -> None:
        """A message of a filter that waits for no answer."""
        observing = self._observing
        if observing is None and self._door.leaving:
            self._end()
        elif observing is None:
            given = message.request_headers.headers.headers
            id = next((one.raw_value.decode("latin-1") or one.value for one in given if one.key == "x-request-id"), "")
            self._observing = Observing(id, self._door)
        elif message.HasField("response_headers"):
            _tell_head(message, observing)
        else:
            observing.received(message)

    # The answer

    def _response_headers(self, message: ProcessingRequest) -> None:
        if not self.routed:  # the gateway has answered for itself, since we took too long
            self._abandon()
            return
        client, answer = self.client, self.answer
        assert client is not None
        told = ProcessingResponse(response_headers=HeadersResponse())
        if answer is not None:
            _tell_head(message, answer)
            told.response_headers.response.header_mutation.CopyFrom(header_mutation(answer.attempt.headers()))
            if message.response_headers.end_of_stream:
                answer.part(b"", last=True)
        self._stream.send(told)

    def _response_body(self, message: ProcessingRequest) -> None:
        client, answer, told = self.client, self.answer, message.response_body
        if not self.routed:
            self._abandon()
            return
        assert client is not None
        data, last = told.body, told.end_of_stream
        passing = data if answer is None else answer.part(data, last=last)
        if client.modes is not None and client.modes[1] != BodyMode.FULL:
            self._stream.send(ProcessingResponse(response_body=BodyResponse()))
        else:
            for part, is_end in chunks(passing):
                if part or last:
                    self._stream.send(echoed(part, last=last and is_end))
        if last and self._door.leaving:
            self._end()

    def _response_trailers(self, message: ProcessingRequest) -> None:
        if not self.routed:
            self._abandon()
            return
        if self.answer is not None and (rest := self.answer.trailers()):
            self._stream.send(echoed(rest, last=False))
        self._stream.send(ProcessingResponse(response_trailers=TrailersResponse()))
        if self._door.leaving:
            self._end()

    def _end(self, status: int = 0, message: str = "") -> None:
        if not self._ended:
            self._ended = True
            self._stream.end(status, message)
            self._look_over()

    def _look_over(self) -> None:
        if self._ended and self._task is None:
            self._door.gone(self)
            self.client = None  # it knows ``_route``, and may hold a body that was refused


HANDLERS: Mapping[str, Callable[[PickerCall, ProcessingRequest], None]] = {
    "request_headers": PickerCall._request_headers,
    "request_body": PickerCall._request_body,
    "request_trailers": PickerCall._request_trailers,
    "response_headers": PickerCall._response_headers,
    "response_body": PickerCall._response_body,
    "response_trailers": PickerCall._response_trailers,
}


class Told(Protocol):
    """Is told of an answer's headers."""

    def head(self, status: int, headers: list[tuple[str, str]], *, served: str, details: str) -> None: ...


def _tell_head(message: ProcessingRequest, answer: Told) -> None:
    status, headers = _head(message)
    attributes = message.attributes[ATTRIBUTES].fields if ATTRIBUTES in message.attributes else {}
    served = text_in(message, BALANCER, SERVED)
    if not served and "upstream.address" in attributes:
        served = attributes["upstream.address"].string_value
    details = attributes["response.code_details"].string_value if "response.code_details" in attributes else ""
    answer.head(status, headers, served=served, details=details)


def _head(message: ProcessingRequest) -> tuple[int, list[tuple[str, str]]]:
    """Status and headers of an answer."""
    status, headers = 0, []
    for one in message.response_headers.headers.headers:
        value = one.raw_value.decode("latin-1") or one.value
        if one.key == ":status":
            status = int(value) if value.isdigit() else 0
        else:
            headers.append((one.key, value))
    return status, headers
