"""A client as a gateway in front of us tells of it: the head of its request, and its body as it comes.

The gateway answers the client; this is only who sends (``serving.client.Sender``).
"""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import Protocol

from multidict import CIMultiDict

from gateway.api.inflate import Inflating, inflating
from gateway.core.pauses import fair_timeout
from gateway.epp.answer import HeardAnswer
from gateway.epp.destination import subset_in
from gateway.epp.messages import HeaderMap, ProcessingRequest
from gateway.errors import BodyTooLarge, GatewayError, ReceiveTimeout
from gateway.proxy.memory import Share
from gateway.proxy.serving.stages import Stages
from gateway.proxy.upstream.legs import Leg
from gateway.tenants.identity import ANYONE, Caller


class BodyMode(IntEnum):
    """What a gateway sends of a body, as ``protocol_config`` says it."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    PARTIAL = 3
    FULL = 4


class Routed(Protocol):
    """Tells the gateway where a request goes."""

    def __call__(self, destination: str, leg: Leg | None, answer: HeardAnswer | None) -> None:
        """``leg``: the request as it is to be sent there; None: as it came. ``answer``: is told of its answer from now
        on; None: nobody asks."""
        ...


class CallClient:
    """The request of one call. ``fields``: all of its headers, to look one up. ``method``, ``path``: empty where the
    gateway does not say (NGINX). ``subset``: addresses to which it restricts the endpoints; None: it does not.

    ``modes``: of the request's and of the answer's body; None: the gateway does not say. ``body``: decompressed, once
    it was received; empty once it was sent on. ``bodyless``: none comes. ``trailers``: some came behind its body.
    ``unzipped``: it came compressed. ``ends``: its call ends with the answer to it, and nothing passes of what follows.
    """

    __slots__ = (
        *("_limit", "_parts", "_share", "_size", "_turn", "_whole", "body", "bodyless", "caller", "ends"),
        *("fields", "headers", "method", "modes", "path", "routed", "stages", "subset", "trailers", "unzipped"),
    )

    def __init__(self, message: ProcessingRequest, stages: Stages, routed: Routed) -> None:
        pseudo, self.headers = _read(message.request_headers.headers)
        self.fields = CIMultiDict(self.headers)
        self.method, self.path = pseudo.get(":method", ""), pseudo.get(":path", "").partition("?")[0]
        self.stages = stages
        self.routed = routed
        self.caller: Caller = ANYONE
        self.subset = subset_in(message)
        self.modes: tuple[int, int] | None = None
        if message.HasField("protocol_config"):
            config = message.protocol_config
            self.modes = config.request_body_mode, config.response_body_mode
        self.trailers = self.unzipped = self.ends = False
        self.bodyless = self._whole = message.request_headers.end_of_stream
        self._parts: list[bytes] = []
        self.body = b""
        self._size = 0
        self._limit: int | None = None
        self._share: Share | None = None
        self._turn: asyncio.Future[None] | None = None

    @property
    def buffered(self) -> bool:
        return self.modes is not None and self.modes[0] == BodyMode.BUFFERED

    @property
    def complete(self) -> bool:
        """Whether all of its body has come."""
        return self._whole

    @property
    def remote(self) -> str | None:
        """The gateway's own word for the client's address comes last."""
        return self.fields.get("x-forwarded-for", "").rpartition(",")[2].strip() or None

    def header(self, name: str) -> str:
        return self.fields.get(name, "")

    async def receive(self, *, limit: int, timeout: float, share: Share) -> bytes:
        """As in ``Sender``. What comes is counted at once or refused: a gateway that has sent it cannot take it
        back. May be called again."""
        if self.body:
            share.take(len(self.body))
            return self.body
        encodings = self.fields.getall("content-encoding", ())
        inflate = inflating(encodings) if encodings else None
        length = self.header("content-length")
        if length.isdigit() and int(length) > limit:
            raise BodyTooLarge(f"The body has {length} bytes; this gateway takes at most {limit}.")
        self._limit, self._share = limit, share
        self._count(self._size)
        if not self._whole:
            self._turn = asyncio.get_running_loop().create_future()
            try:
                async with fair_timeout(timeout):
                    await self._turn
            except TimeoutError as error:
                raise ReceiveTimeout(f"The body did not arrive within {timeout:g} s.") from error
            finally:
                self._turn = self._share = None
        parts, self._parts = self._parts, []
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        self.unzipped = inflate is not None
        self.body = body if inflate is None else await _unzipped(body, inflate, limit, share)
        return self.body

    def changed(self, body: bytes) -> bool:
        """Whether ``body`` is another than that which came, of which nothing is kept from now on."""
        came, self.body = self.body, b""
        return self.unzipped or body != came

    def feed(self, part: bytes, *, last: bool) -> None:
        """The next part of its body has come."""
        if self._whole or self._limit == 0:
            return
        self._whole = last
        if part:
            self._parts.append(part)
            self._size += len(part)
        turn = self._turn
        if turn is None or turn.done():
            return
        try:
            self._count(len(part))
        except GatewayError as error:
            self.forget()
            turn.set_exception(error)
            return
        if last:
            turn.set_result(None)

    def forget(self) -> None:
        """Keep nothing of what has come and still comes of its body."""
        self._parts, self.body, self._limit, self._share = [], b"", 0, None

    def _count(self, size: int) -> None:
        """Raises BodyTooLarge, Exhausted."""
        if self._limit is not None and self._size > self._limit:
            raise BodyTooLarge(f"The body has more than the {self._limit} bytes that this gateway takes.")
        if size and self._share is not None:
            self._share.take(size)


async def _unzipped(body: bytes, inflate: Inflating, limit: int, share: Share) -> bytes:
    parts: list[bytes] = []
    size = 0
    for part in inflate.slices(body):
        size += len(part)
        if size > limit:
            raise BodyTooLarge(f"The body has more than the {limit} bytes that this gateway takes.")
        share.take(len(part))
        parts.append(part)
        await asyncio.sleep(0)
    inflate.end()
    return b"".join(parts)


def _read(headers: HeaderMap) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """The pseudo-headers, and all others."""
    pseudo: dict[str, str] = {}
    others: list[tuple[str, str]] = []
    for one in headers.headers:
        value = one.raw_value.decode("utf-8", "surrogateescape") or one.value
        if one.key.startswith(":"):
            pseudo[one.key] = value
        else:
            others.append((one.key.lower(), value))
    return pseudo, others
