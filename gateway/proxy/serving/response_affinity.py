"""Remembers which engine keeps which response, so that a request with ``previous_response_id`` goes to that engine.

vLLM keeps responses in the memory of one server (with ``VLLM_ENABLE_RESPONSES_API_STORE``), and does not report which
ones. So the id of every response that may be kept is noted while it passes. An engine that has not kept a response
answers with an error.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from gateway.api.body import JsonBody
from gateway.api.lax import truth
from gateway.api.prompts import TRUE
from gateway.api.responses import read_id
from gateway.errors import NotFound
from gateway.framework import Clock, Endpoint, Kind
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.call import Call
from gateway.proxy.serving.kept_responses import REMEDY
from gateway.proxy.upstream.commit import Committed

MAX_KEPT = 50_000
"""The most ids, some 300 bytes each. vLLM itself keeps all responses until it ends."""
LIFETIME = 24 * 3600.0
"""Seconds after which an unused id is dropped. A client that returns later has to send the conversation."""
MAX_ID = 256
"""The most characters of an id, since a client may choose it."""
SHOWN = 64
TOGETHER = 500
"""Responses in one note to a worker that has just started: some tenths of a millisecond's work."""

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(list[tuple[str, str, float]])


def may_be_kept(call: Call) -> bool:
    """Whether its answer is a response that its engine may keep, for the client to go on from."""
    body = call.body
    if call.route.kind is not Kind.RESPONSES or not isinstance(body, JsonBody):
        return False
    return truth(body.fields.get("store", TRUE)) is not False


class Homes(Protocol):
    """Where replicas tell each other which engine keeps a response: ``gateway.sharing.homes``."""

    def note(self, response: str, url: str) -> None: ...

    async def find(self, response: str) -> str | None: ...


class ResponseAffinity:
    """Response id -> URL of the engine that made it; bounded, least recently used first out. ``homes``: what replicas
    know besides; None: there are none. ``tell``: sends a note to the host's other workers."""

    def __init__(
        self, clock: Clock, homes: Homes | None = None, tell: Callable[[bytes], None] = lambda note: None
    ) -> None:
        self._clock = clock
        self._homes = homes
        self._tell = tell
        self._engines: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._engines)

    def note(self, response: str, endpoint: Endpoint) -> None:
        """``endpoint`` answered with ``response``."""
        if not response or len(response) > MAX_ID:
            return
        url = endpoint.engine.url
        self._keep(response, url)
        self._tell(_ENCODER.encode([(response, url, 0.0)]))
        if self._homes is not None:
            self._homes.note(response, url)

    def on_heard(self, note: bytes) -> None:
        """Another worker knows of responses: id, engine, and how long ago each was used.

        Raises msgspec.MsgspecError.
        """
        now = self._clock.monotonic()
        for response, url, age in _DECODER.decode(note):
            known = self._engines.get(response)
            if known is None or known[1] < now - age:
                self._keep(response, url, now - age)

    def remembered(self) -> Iterator[bytes]:
        """All of them, for a worker that has just started; those used last at the end."""
        kept, now = list(self._engines.items()), self._clock.monotonic()
        for start in range(0, len(kept), TOGETHER):
            part = kept[start : start + TOGETHER]
            yield _ENCODER.encode([(response, url, now - at) for response, (url, at) in part])

    def after_commit(self, attempt: Attempt, committed: Committed) -> None:
        """An ``AfterCommit`` of ``/v1/responses``: its client could go on from the answer as soon as it has it."""
        if committed.status != 200 or not may_be_kept(attempt.call):
            return
        response = read_id(committed.text, stream=committed.events is not None)
        if response is not None:
            self.note(response, attempt.plan.decode)

    async def find(self, response: str, endpoints: Sequence[Endpoint]) -> str:
        """As ``engine_of``, and replicas are asked where this gateway does not know."""
        if self._homes is not None and response not in self._engines and 0 < len(response) <= MAX_ID:
            urls = {endpoint.engine.url for endpoint in endpoints}
            if len(urls) > 1 and (url := await self._homes.find(response)) in urls:
                self._keep(response, str(url))
        return self.engine_of(response, endpoints)

    def engine_of(self, response: str, endpoints: Sequence[Endpoint]) -> str:
        """The URL of the engine that keeps ``response``. ``endpoints``: those of the request's model.

        Raises:
            NotFound: the engine is not known, and there are several; or it does not serve this model.
        """
        shown = response[:SHOWN]
        urls = {endpoint.engine.url for endpoint in endpoints}
        url, at = self._engines.get(response, ("", 0.0))
        if url and self._clock.monotonic() - at > LIFETIME:
            del self._engines[response]
            url = ""
        if url:
            self._engines[response] = url, self._clock.monotonic()
            self._engines.move_to_end(response)
        elif len(urls) == 1:
            return urls.pop()  # only this engine can have it, even if it answered through another gateway
        else:
            raise NotFound(
                f"No engine is known to keep the response {shown!r}: it did not go through this gateway since its "
                f"start, or too long ago; {REMEDY}.",
                param="previous_response_id",
            )
        if url not in urls:
            raise NotFound(
                f"The response {shown!r} was made by an engine that does not serve this model, or is gone; {REMEDY}.",
                param="previous_response_id",
            )
        return url

    def _keep(self, response: str, url: str, at: float | None = None) -> None:
        self._engines[response] = url, self._clock.monotonic() if at is None else at
        self._engines.move_to_end(response)
        while len(self._engines) > MAX_KEPT:
            self._engines.popitem(last=False)
