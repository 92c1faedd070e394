"""Which engine keeps which response, so that ``previous_response_id`` goes where it means something.

vLLM keeps responses in the memory of one server (with ``VLLM_ENABLE_RESPONSES_API_STORE``), and tells of none that it
does. So the id of every response that might be kept is noted as it goes by; an engine that has not kept it says so.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from gateway.errors import NoEndpoint, NotFound
from gateway.framework import Clock, Endpoint

MAX_KEPT = 50_000
"""Ids: some 300 bytes each. vLLM itself forgets none until it ends."""
LIFETIME = 24 * 3600.0
"""Seconds since an id was last seen: who comes back later than that sends the conversation."""
MAX_ID = 256
"""Characters: a client may choose the id."""
SHOWN = 64
DOWN_RETRY = 5.0
"""Seconds in ``Retry-After``: an engine that is only slow is back by then, and one that restarts has lost it anyway."""

REMEDY = "send the conversation as input instead"


class ResponseAffinity:
    """Response id -> URL of the engine that made it; bounded, least recently used first out."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._engines: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._engines)

    def note(self, response: str, endpoint: Endpoint) -> None:
        """``endpoint`` answered with ``response``."""
        if not response or len(response) > MAX_ID:
            return
        self._engines[response] = endpoint.engine.url, self._clock.monotonic()
        self._engines.move_to_end(response)
        while len(self._engines) > MAX_KEPT:
            self._engines.popitem(last=False)

    def engine_of(self, response: str, endpoints: Sequence[Endpoint]) -> str:
        """The URL of the engine that a request going on from ``response`` is for. ``endpoints``: of its model.

        Raises:
            NotFound: it is not known, and there are several; or it is of another model.
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
            return urls.pop()  # made before we started, or through another gateway: it knows
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


def kept_at(url: str, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    """Those of ``endpoints`` on the engine at ``url``.

    Raises:
        NoEndpoint: it is down; no other engine could serve the request.
    """
    kept = [endpoint for endpoint in endpoints if endpoint.engine.url == url]
    if not any(endpoint.engine.up for endpoint in kept):
        raise NoEndpoint(
            f"The engine that keeps the response named by previous_response_id is down; wait for it, or {REMEDY}.",
            param="previous_response_id",
            retry_after=DOWN_RETRY,
        )
    return kept
