"""What the picker changes of a request on its way to an engine: the same as the proxy would send there.

The gateway in front forwards the request, so what it gets is the difference: headers that are set and removed, and the
body. Headers of each connection stay the gateway's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.api.headers import HOP_BY_HOP
from gateway.epp.destination import metadata
from gateway.epp.messages import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    ProcessingResponse,
    StreamedBodyResponse,
    header_mutation,
)
from gateway.epp.names import DESTINATION

CHUNK = 62_000
"""Bytes of a body's part in a message: Envoy takes at most 64 KB in FULL_DUPLEX_STREAMED."""

GATEWAYS_OWN = HOP_BY_HOP | {"host", "content-length", "expect", DESTINATION}
"""Headers that are never removed: the gateway frames its own connections. ``DESTINATION`` is overwritten."""


def header_edits(
    given: Iterable[tuple[str, str]], wanted: Iterable[tuple[str, str]]
) -> tuple[list[tuple[str, str]], list[str]]:
    """The headers to set, and the names of those to remove, that make ``wanted`` of ``given``."""
    before, after = _by_name(given), _by_name(wanted)
    changed = [(name, ", ".join(values)) for name, values in after.items() if before.get(name) != values]
    return changed, [name for name in before if name not in after and name not in GATEWAYS_OWN]


def routed_by_headers(destination: str, edits: HeaderMutation) -> ProcessingResponse:
    """The answer to a request's headers. In FULL_DUPLEX_STREAMED its body follows in messages of its own."""
    common = CommonResponse(header_mutation=edits, clear_route_cache=True)
    answer = HeadersResponse(response=common)
    return ProcessingResponse(request_headers=answer, dynamic_metadata=metadata(destination))


def routed_by_body(destination: str, edits: HeaderMutation, body: bytes | None) -> ProcessingResponse:
    """The answer to a whole body in BUFFERED. ``body``: in its place; None: it stays."""
    common = CommonResponse(header_mutation=edits, clear_route_cache=True)
    if body is not None:
        common.body_mutation.body = body
    return ProcessingResponse(request_body=BodyResponse(response=common), dynamic_metadata=metadata(destination))


def chunks(body: bytes) -> list[tuple[bytes, bool]]:
    """Parts of ``body`` for messages, each with whether it is the last; at least one."""
    if len(body) <= CHUNK:
        return [(body, True)]
    return [(body[at : at + CHUNK], at + CHUNK >= len(body)) for at in range(0, len(body), CHUNK)]


def echoed(body: bytes, *, last: bool) -> ProcessingResponse:
    """A part of an answer's body on its way to the client, in FULL_DUPLEX_STREAMED."""
    streamed = StreamedBodyResponse(body=body, end_of_stream=last)
    common = CommonResponse(body_mutation=BodyMutation(streamed_response=streamed))
    return ProcessingResponse(response_body=BodyResponse(response=common))


def destination_edits(
    destination: str, changed: Sequence[tuple[str, str]] = (), removed: Sequence[str] = (), *, length: int | None = None
) -> HeaderMutation:
    """The header that names ``destination``, among other edits. ``length``: of the body, where that may have changed:
    Envoy drops it in FULL_DUPLEX_STREAMED, and others believe it."""
    headers = [*changed, (DESTINATION, destination)]
    if length is not None:
        headers.append(("content-length", str(length)))
    return header_mutation(headers, removed)


def _by_name(headers: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in headers:
        found.setdefault(name, []).append(value)
    return found
