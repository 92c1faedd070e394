"""From what a body says to a ``Request`` and its block keys. Shared by the director and ``kvgate explain``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b

from gateway.api.parse import Parsed
from gateway.api.session import read_session
from gateway.api.slo import OBJECTIVES, read_slo
from gateway.core.prompt import PrefixedIds, Prompt
from gateway.errors import ClientError
from gateway.framework import GENERATES
from gateway.kvcache.index.keys import BlockKeys
from gateway.proxy.serving.band import band_of
from gateway.proxy.serving.model_directory import ModelDirectory, ModelRuntime
from gateway.proxy.serving.tokenized_request import TokenizedRequest
from gateway.tenants.identity import ANYONE, Caller

KEYS = frozenset({"authorization", "x-api-key"})


def identify(
    parsed: Parsed,
    directory: ModelDirectory,
    *,
    request_id: str,
    arrived: float,
    headers: Mapping[str, str],
    cookie: str = "",
    caller: Caller = ANYONE,
) -> tuple[ModelRuntime, TokenizedRequest]:
    """The model that ``parsed`` means, and the request without its tokens. ``headers``: what plugins may see of them.
    ``cookie``: the Cookie header, of which they see no more than the session. ``caller``: who sends it.

    Raises NotFound for an unknown model, or one that ``caller`` may not use, ClientError where none is named and there
    are several, or a header is wrong.
    """
    name = parsed.model or directory.only(caller)
    if name is None:
        raise ClientError("The body must name a model: GET /v1/models lists what there is.", param="model")
    runtime, adapter = directory.find(name, caller)
    expected = runtime.model.expected_output if parsed.route.kind in GENERATES else 0.0
    session, slo, usual = parsed.session, None, runtime.slo
    # Most requests say neither of these in their headers: looked for here, that costs them least.
    if cookie or not headers.keys().isdisjoint(runtime.session.headers):
        session = read_session(session, headers, cookie, runtime.session)
    if usual.ttft_ms is not None or usual.tpot_ms is not None or not OBJECTIVES.isdisjoint(headers):
        slo = read_slo(headers, usual)
    band, bands = caller.band, caller.bands
    if bands[0] != bands[1]:
        band = band_of(caller, headers, parsed.priority)
    request = TokenizedRequest(
        id=request_id,
        model=runtime.model,
        kind=parsed.route.kind,
        arrived=arrived,
        adapter=adapter,
        stream=parsed.stream,
        max_tokens=parsed.max_tokens,
        expected_output=parsed.n * (min(expected, parsed.max_tokens) if parsed.max_tokens else expected),
        cache_salt=parsed.cache_salt,
        priority=parsed.priority,
        session=session,
        indivisible=parsed.indivisible,
        headers=headers,
        slo=slo,
        tenant=caller.tenant,
        band=band,
    )
    return runtime, request


def client_of(headers: Sequence[tuple[str, str]], address: str | None) -> str:
    """A name for whose request it is: by the key that it sends, which here or in front of us is checked, else by its
    ``address``. Names nothing that a log must not hold."""
    for name, value in headers:
        if name.lower() in KEYS:
            return blake2b(value.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    return address or ""


def tokenized(runtime: ModelRuntime, request: TokenizedRequest, prompt: Prompt) -> BlockKeys:
    """Enter the tokens into ``request``; returns the keys of their blocks."""
    ids, request.prompt_tokens, request.exact = prompt.ids, prompt.count, prompt.whole
    if isinstance(ids, PrefixedIds):
        request.ids = ids
        del request.token_ids  # until something reads them
    else:
        request.token_ids = ids
    return runtime.index.keys(prompt, request.adapter, request.cache_salt)
