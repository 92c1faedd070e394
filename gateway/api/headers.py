"""Which headers pass from a client to an engine and back, and the request's id.

Rules: names are compared in lower case. Framing headers belong to each connection, credentials to each side, and
headers that steer an engine to the gateway: none of those is copied. All others are, tracing headers included.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import lru_cache

from gateway.api.encoding import acceptable
from gateway.api.settings import PassThroughSettings
from gateway.errors import ClientError

MAX_REQUEST_ID = 128
"""Characters: three UUIDs; engines log it and put it into their own ids."""

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""RFC 9110 section 7.6.1, with the de-facto ``keep-alive`` and ``proxy-connection``."""
OWN = frozenset({"host", "content-length", "content-type", "content-encoding", "expect", "x-request-id"})
"""Set anew for each leg: we send the body, uncompressed."""
CREDENTIALS = frozenset({"authorization", "x-api-key", "api-key", "cookie"})
NEGOTIATED = frozenset({"accept-encoding"})
"""Passed on as far as a compressed answer can be observed."""
ALSO = {
    "x-gateway-inference-objective": "x-llm-d-inference-objective",
    "x-llm-d-slo-ttft-ms": "x-slo-ttft-ms",
    "x-llm-d-slo-tpot-ms": "x-slo-tpot-ms",
}
"""Other names, those that llm-d had before and has now, and the header that each stands for; if both are given, that
one counts: who changes from one name to the other sends both for a while."""
ONCE = frozenset({"x-kvgate-priority", *ALSO, *ALSO.values()})
"""Refused if repeated: it is not clear which of two objectives or priorities a request means."""
STEERING = frozenset(
    {
        *("x-session-id", "x-session-token", "epp-profile", "endpoint-load-metrics-format"),
        *("x-slo-ttft-ms", "x-slo-tpot-ms"),
    }
)
STEERING_PREFIXES = (
    "x-data-parallel-",
    "x-decoder-",
    "x-encoder-",
    "x-gateway-",
    "x-kv-",
    "x-kvgate-",
    "x-llm-d-",
    "x-prefill",
    "x-sglang-",
    "x-smg-",
    "x-vllm-",
)
"""What vLLM 0.32 reads (``x-data-parallel-rank``, ``x-vllm-priority``), or sidecars and routers in front of engines."""

RANK_HEADER = "x-data-parallel-rank"
"""Pins a request to one data-parallel rank of a vLLM server."""

_UNCLEAN = re.compile(r"[^A-Za-z0-9._:\-]")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

Headers = Iterable[tuple[str, str]]


class _Rule(Enum):
    STAYS = 0
    PASSES = 1
    AUTHORIZES = 2
    STEERS = 3
    NEGOTIATES = 4
    DECLARES = 5


STAYS, PASSES, AUTHORIZES, STEERS, NEGOTIATES, DECLARES = _Rule


def request_id(values: Sequence[str], make: Callable[[], str]) -> str:
    """The id of a request whose client gave ``values``: the first one, cleaned and bounded; else a new one."""
    cleaned = _UNCLEAN.sub("", values[0][: 8 * MAX_REQUEST_ID])[:MAX_REQUEST_ID] if values else ""
    return cleaned or make()


def to_engine(
    headers: Headers, settings: PassThroughSettings, *, api_key: str | None = None, readable: bool = False
) -> list[tuple[str, str]]:
    """The client's headers that may pass to an engine, names in lower case, and the engine's own ``api_key``.

    ``readable``: the gateway reads the answer, so that it must not be compressed. The caller adds the headers of each
    leg: content type and length, request id, rank.
    """
    authorized, allowed = api_key is None and settings.authorization, settings.steering_headers
    out: list[tuple[str, str]] = []
    encodings: list[str] = []
    of_this_hop: set[str] = set()
    for given, value in headers:
        name, fate = _known(given)
        if fate is PASSES or (fate is STEERS and name in allowed) or (fate is AUTHORIZES and authorized):
            if value.isprintable() or not _CONTROL.search(value):
                out.append((name, value))
        elif fate is DECLARES:
            for token in value.split(","):
                of_this_hop.add(token.strip().lower())
        elif fate is NEGOTIATES:
            encodings.append(value)
    if of_this_hop:
        out = [(name, value) for name, value in out if name not in of_this_hop]
    if api_key is not None:
        out.append(("authorization", f"Bearer {api_key}"))
    if encodings and not readable and (accepted := acceptable(encodings)):
        out.append(("accept-encoding", accepted))
    return out


def to_client(headers: Headers) -> list[tuple[str, str]]:
    """The headers of an engine's answer that pass to the client, names in lower case; no framing, no
    ``x-request-id``."""
    out: list[tuple[str, str]] = []
    of_this_hop: set[str] = set()
    for given, value in headers:
        name = given.lower()
        if name == "connection":
            for token in value.split(","):
                of_this_hop.add(token.strip().lower())
        elif name not in _NOT_BACK and (value.isprintable() or not _CONTROL.search(value)):
            out.append((name, value))
    return [(name, value) for name, value in out if name not in of_this_hop] if of_this_hop else out


def visible(headers: Headers) -> dict[str, str]:
    """The client's headers that plugins may see: no credentials; of a repeated name the first. What has another name
    in ``ALSO`` is there by the one that is looked for.

    Raises ClientError for a repeated one in ``ONCE``.
    """
    seen: dict[str, str] = {}
    for name, value in headers:
        lower = name.lower()
        if lower in ONCE and lower in seen:
            raise ClientError(f"The header {lower} is given more than once: give it once.", param=lower)
        if lower not in CREDENTIALS and lower != "proxy-authorization":
            seen.setdefault(lower, value)
    if not seen.keys().isdisjoint(ALSO):
        for other, name in ALSO.items():
            if other in seen:
                seen.setdefault(name, seen[other])
    return seen


@lru_cache(maxsize=256)
def _known(given: str) -> tuple[str, _Rule]:
    """A client's header: its name in lower case, and the rule for it. Clients send the same few dozen."""
    name = given.lower()
    if name == "connection":
        return name, DECLARES
    if name in NEGOTIATED:
        return name, NEGOTIATES
    if name in HOP_BY_HOP or name in OWN or name == "cookie":
        return name, STAYS
    if name in CREDENTIALS:
        return name, AUTHORIZES
    return name, STEERS if name in STEERING or name.startswith(STEERING_PREFIXES) else PASSES


_NOT_BACK = HOP_BY_HOP | {"content-length", "server", "date", "x-request-id", "set-cookie", "endpoint-load-metrics"}
