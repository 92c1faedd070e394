"""A gateway that asks a picker by ext-proc as Envoy does, over a real gRPC client, and carries the requests itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import httpx
import orjson
from grpc import aio

from gateway.config.settings import Config
from gateway.epp.messages import (
    HeaderMap,
    HeaderMutation,
    HeaderValue,
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
)
from gateway.epp.names import BALANCER, DESTINATION, HINTS, SERVED, SUBSET
from gateway.epp.settings import PickerSettings
from gateway.picker_listeners import PickerListeners
from tests.support.gateway import Running, config_for, running

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
CHAT = "/v1/chat/completions"
NONE, STREAMED, BUFFERED, FULL = 0, 1, 2, 4


@dataclass(frozen=True)
class Modes:
    """What a gateway sends. ``request``, ``response``: body modes. ``heads``: the response's headers. ``trailers``: and
    its end, or its trailers. ``announced``: it says so in ``protocol_config``."""

    request: int = FULL
    response: int = FULL
    heads: bool = True
    trailers: bool = True
    announced: bool = True


MODES = {
    "full": Modes(),
    "ends": Modes(response=NONE),
    "heads": Modes(response=NONE, trailers=False),
    "request": Modes(response=NONE, heads=False, trailers=False),
    "buffered": Modes(BUFFERED, NONE, heads=False, trailers=False),
    "streamed": Modes(response=STREAMED, trailers=False),
}


class AskingCall:
    """One call. ``say`` sends a message; ``hear`` takes the next answer, None at the end of the call."""

    def __init__(self, channel: aio.Channel) -> None:
        ask = channel.stream_stream(
            PROCESS,
            request_serializer=ProcessingRequest.SerializeToString,
            response_deserializer=ProcessingResponse.FromString,
        )
        self.call = ask()
        self._heard: asyncio.Queue[ProcessingResponse | None] = asyncio.Queue()
        # Read at once: what came before a message that could not be written would be lost.
        self._reading = asyncio.create_task(self._read())

    async def say(self, **message: Any) -> None:
        await self.send(ProcessingRequest(**message))

    async def send(self, message: ProcessingRequest) -> None:
        with contextlib.suppress(aio.AioRpcError, asyncio.InvalidStateError):  # the picker may have ended the call
            await self.call.write(message)

    async def hear(self) -> ProcessingResponse | None:
        return await self._heard.get()

    async def _read(self) -> None:
        try:
            while (heard := await self.call.read()) is not aio.EOF:
                self._heard.put_nowait(heard)
        except (aio.AioRpcError, asyncio.CancelledError):
            pass
        finally:
            self._heard.put_nowait(None)

    async def head(
        self, status: int = 200, type: str = "text/event-stream", served: str = "", **attributes: str
    ) -> None:
        """The answer's headers, and the picker's answer to them. ``attributes``: ``code_details`` of the response."""
        headers = header_map([(":status", str(status)), ("content-type", type)])
        message = ProcessingRequest(response_headers=HttpHeaders(headers=headers))
        if served:
            message.metadata_context.filter_metadata[BALANCER].fields[SERVED].string_value = served
        for name, value in attributes.items():
            space = message.attributes["envoy.filters.http.ext_proc"]
            space.fields[f"response.{name}"].string_value = value
        await self.send(message)
        told = await self.hear()
        assert told is not None
        assert told.WhichOneof("response") == "response_headers"

    async def part(self, data: bytes, *, last: bool = False) -> bytes:
        """A part of the answer's body; returns what passes of it."""
        await self.say(response_body=HttpBody(body=data, end_of_stream=last))
        told = await self.hear()
        assert told is not None
        return told.response_body.response.body_mutation.streamed_response.body

    async def half_close(self) -> None:
        with contextlib.suppress(aio.AioRpcError, asyncio.InvalidStateError):
            await self.call.done_writing()

    def reset(self) -> None:
        self.call.cancel()

    async def status(self) -> grpc.StatusCode:
        return await self.call.code()


def header_map(headers: Sequence[tuple[str, str]]) -> HeaderMap:
    return HeaderMap(headers=[HeaderValue(key=name, raw_value=value.encode()) for name, value in headers])


def set_by(mutation: HeaderMutation) -> dict[str, str]:
    return {one.header.key: one.header.raw_value.decode() for one in mutation.set_headers}


@dataclass
class Carried:
    """What became of a request. ``destination``: header and metadata. ``body``: of the answer, as the client got it.
    ``sent``: what the endpoint got. ``refused``: the picker answered. ``heard``: its messages' kinds."""

    destination: tuple[str, str] = ("", "")
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    sent: bytes = b""
    sent_headers: dict[str, str] = field(default_factory=dict)
    refused: bool = False
    heard: list[str] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


class Asked:
    """A request that waits for its answer from the picker, or has it. ``carried``: what is known of it."""

    def __init__(self, call: AskingCall, modes: Modes, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        self.call, self.modes, self.given, self.body = call, modes, list(headers), body
        self.carried = Carried()

    async def answered(self) -> Carried:
        """The picker's answer to the request, whole."""
        carried, mutation = self.carried, HeaderMutation()
        parts: list[bytes] = []
        while (message := await self.call.hear()) is not None:
            kind = message.WhichOneof("response")
            carried.heard.append(kind)
            if kind == "immediate_response":
                refusal = message.immediate_response
                carried.refused, carried.status, carried.body = True, refusal.status.code, refusal.body
                carried.headers = set_by(refusal.headers)
                return carried
            if kind in ("request_headers", "request_body"):
                said = getattr(message, kind).response
                if said.header_mutation.set_headers:
                    mutation = said.header_mutation
                    told = message.dynamic_metadata.fields[BALANCER].struct_value.fields[DESTINATION].string_value
                    carried.destination = set_by(mutation)[DESTINATION], told
                if kind == "request_headers" and carried.destination[0] and not self.body:
                    break
                if self.modes.request == BUFFERED and kind == "request_body":
                    parts.append(said.body_mutation.body or self.body)
                    break
                if kind == "request_body":
                    streamed = said.body_mutation.streamed_response
                    assert len(streamed.body) <= 64 * 1024
                    parts.append(streamed.body)
                    if streamed.end_of_stream:
                        break
        carried.sent = b"".join(parts)
        sent = {name: value for name, value in self.given if not name.startswith(":")}
        for name in mutation.remove_headers:
            sent.pop(name, None)
        carried.sent_headers = sent | set_by(mutation)
        return carried


class AskingGateway:
    """Asks at ``channel`` in ``modes``. ``http``: carries what is routed."""

    def __init__(self, channel: aio.Channel, http: httpx.AsyncClient, modes: Modes) -> None:
        self.channel, self.http, self.modes = channel, http, modes

    async def ask(
        self,
        body: Any = None,
        *,
        path: str = CHAT,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        subset: str | Sequence[str] | None = None,
        chunk: int = 60_000,
        modes: Modes | None = None,
        complete: bool = True,
    ) -> Asked:
        """A request to the picker, which is not answered yet. ``body``: JSON or bytes. ``complete``: all of it."""
        modes = modes or self.modes
        raw = b"" if body is None else body if isinstance(body, bytes) else orjson.dumps(body)
        given = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "kvgate")]
        given += [("content-type", "application/json"), ("x-request-id", "id-of-envoy"), *(headers or {}).items()]
        if not modes.announced:
            given = [one for one in given if not one[0].startswith(":")]
        call = AskingCall(self.channel)
        message: dict[str, Any] = {
            "request_headers": HttpHeaders(headers=header_map(given), end_of_stream=not raw and complete)
        }
        request = ProcessingRequest(**message)
        if modes.announced:
            request.protocol_config.CopyFrom(
                ProtocolConfiguration(request_body_mode=modes.request, response_body_mode=modes.response)
            )
        if subset is not None:
            hint = request.metadata_context.filter_metadata[HINTS].fields[SUBSET]
            if isinstance(subset, str):
                hint.string_value = subset
            else:
                hint.list_value.SetInParent()
                for one in subset:
                    hint.list_value.values.add().string_value = one
        await call.send(request)
        asked = Asked(call, modes, given, raw)
        if not raw:
            return asked
        if modes.request == BUFFERED:
            first = await call.hear()
            assert first is not None
            assert first.WhichOneof("response") == "request_headers"
            await call.say(request_body=HttpBody(body=raw, end_of_stream=complete))
            return asked
        for at in range(0, len(raw), chunk):
            await call.say(request_body=HttpBody(body=raw[at : at + chunk], end_of_stream=False))
        if complete:
            await call.say(request_body=HttpBody(body=b"", end_of_stream=True))
        return asked

    async def post(self, body: Any, *, served: str = "", **how: Any) -> Carried:
        """A request from its beginning to its end, as Envoy carries it. ``served``: told as who answered."""
        asked = await self.ask(body, **how)
        carried = await asked.answered()
        if not carried.refused:
            await self.carry(asked, how.get("path", CHAT), served=served)
        return carried

    async def carry(self, asked: Asked, path: str = CHAT, *, served: str = "") -> Carried:
        """Send it where the picker said, and tell of the answer what the mode says."""
        carried, call, modes = asked.carried, asked.call, asked.modes
        if modes == MODES["request"]:
            call.reset()
        passed = {name: value for name, value in carried.sent_headers.items() if name != "content-length"}
        url = f"http://{carried.destination[0].partition(',')[0]}{path}"
        parts: list[bytes] = []
        async with self.http.stream("POST", url, content=carried.sent, headers=passed) as answer:
            carried.status = answer.status_code
            if modes.heads:
                await self._head(asked, answer, served)
            if modes == MODES["heads"]:
                call.reset()
            async for data in answer.aiter_raw():
                if modes.response in (FULL, STREAMED):
                    await call.say(response_body=HttpBody(body=data))
                    parts.append(data if modes.response == STREAMED else b"")
                else:
                    parts.append(data)
        if modes.response in (FULL, STREAMED):
            await call.say(response_body=HttpBody(body=b"", end_of_stream=True))
            await self._told(asked, parts)
            call.reset()
        elif modes in (MODES["ends"], MODES["buffered"]):
            await call.half_close()
            assert await call.hear() is None
        carried.body = b"".join(parts)
        return carried

    async def _head(self, asked: Asked, answer: httpx.Response, served: str) -> None:
        headers = [(":status", str(answer.status_code)), *answer.headers.items()]
        message = ProcessingRequest(response_headers=HttpHeaders(headers=header_map(headers)))
        if served:
            space = message.metadata_context.filter_metadata[BALANCER]
            space.fields[f"{DESTINATION}-served"].string_value = served
        await asked.call.send(message)
        told = await asked.call.hear()
        if told is not None:
            assert told.WhichOneof("response") == "response_headers"
            asked.carried.headers = set_by(told.response_headers.response.header_mutation)

    async def _told(self, asked: Asked, parts: list[bytes]) -> None:
        """What the picker lets pass of an answer's body."""
        if asked.modes.response != FULL:
            return
        while (message := await asked.call.hear()) is not None:
            streamed = message.response_body.response.body_mutation.streamed_response
            parts.append(streamed.body)
            if streamed.end_of_stream:
                return


@dataclass
class Picking:
    """A gateway of ours with a picker, and one in front that asks it. ``port``: of the picker."""

    running: Running
    front: AskingGateway
    listeners: PickerListeners
    port: int

    @property
    def line(self) -> Any:
        return self.running.lines[-1]

    def modes(self, name: str) -> AskingGateway:
        return AskingGateway(self.front.channel, self.front.http, MODES[name])


def picker_config(*urls: str, epp: Mapping[str, Any] | None = None, **changes: Any) -> Config:
    return config_for(*urls, **({"epp": replace(PickerSettings(), **(epp or {}))} | changes))


@contextlib.asynccontextmanager
async def picking(config: Config, *, modes: str = "full") -> AsyncIterator[Picking]:
    """On free ports of its own, whatever the configuration says."""
    async with running(config) as gateway, httpx.AsyncClient(timeout=30) as http:
        assert gateway.gateway.doors.picker is not None
        assert config.epp is not None
        listeners = PickerListeners(gateway.gateway.doors.picker, config.epp, config.listen.max_body)
        try:
            port = await listeners.listeners["picker"].open("127.0.0.1", 0)
            async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield Picking(gateway, AskingGateway(channel, http, MODES[modes]), listeners, port)
        finally:
            await listeners.close()


__all__ = ["CHAT", "MODES", "AskingCall", "HttpTrailers", "Modes", "Picking", "picker_config", "picking"]
