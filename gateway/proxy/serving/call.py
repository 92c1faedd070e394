"""What is known of a request once it is read. Frozen: what happens later is in an ``Attempt`` and a ``Timeline``.

An ``IncomingRequest`` has been parsed and belongs to a model. A ``Call`` has its prompt's tokens, too, and can be
placed.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from gateway.api.body import Body, JsonBody
from gateway.api.routes import Route
from gateway.api.settings import PassThroughSettings
from gateway.core.prompt import Prompt
from gateway.framework import Endpoint
from gateway.kvcache.index.keys import BlockKeys
from gateway.proxy.serving.model_directory import ModelRuntime
from gateway.proxy.serving.tokenized_request import TokenizedRequest

NO_IDS = array("I")


class IncomingRequest(msgspec.Struct, frozen=True, eq=False):
    """``headers``: the client's. ``sequences``: how many answers it requests. ``pinned_url``: URL of the only engine
    that can serve it; empty: any may. ``timeout``: seconds from its arrival after which its client wants it no more."""

    id: str
    route: Route
    headers: Sequence[tuple[str, str]]
    body: Body
    runtime: ModelRuntime
    request: TokenizedRequest
    sequences: int
    pinned_url: str
    timeout: float


class Call(IncomingRequest, frozen=True, eq=False):
    """``keys``: of the prompt's blocks. ``own_tokens``: as many our tokenizer made of the prompt; None: it did not."""

    prompt: Prompt
    keys: BlockKeys
    own_tokens: int | None

    @classmethod
    def of(cls, incoming: IncomingRequest, prompt: Prompt, keys: BlockKeys) -> Call:
        own = None if prompt.own is None else len(prompt.own)
        return cls(
            *(incoming.id, incoming.route, incoming.headers, incoming.body, incoming.runtime, incoming.request),
            *(incoming.sequences, incoming.pinned_url, incoming.timeout, prompt, keys, own),
        )

    def exact_on(self, endpoint: Endpoint) -> bool:
        """Whether the prompt's ids are those that the engine at ``endpoint`` makes of it."""
        return self.prompt.exact and endpoint.name not in self.prompt.differing

    def without_prompt(self) -> Call:
        """The same, once its answer has begun, which may take an hour: the prompt's counts and keys are left."""
        self.request.token_ids, self.request.ids = NO_IDS, None
        prompt = replace(self.prompt, ids=NO_IDS, own=None, media=())
        return replace(self, headers=(), body=NO_BODY, prompt=prompt)


NO_BODY = JsonBody(b"{}", PassThroughSettings())
