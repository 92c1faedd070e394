"""A store that both engines have (vLLM's ExampleConnector, MooncakeStoreConnector, an offload tier that is shared): the
prefill engine writes the KV there, the decode engine finds it by its tokens. No parameters.
"""

from __future__ import annotations

from gateway.api.body import JsonBody
from gateway.framework import Kind
from gateway.proxy.serving.connectors.contract import Pair
from gateway.proxy.serving.connectors.one_token import one_token
from gateway.proxy.serving.handover_failures import HandoverCause, HandoverFailed


class SharedStorage:
    at_once = False
    decode_can_compute = True

    async def open(self, pair: Pair) -> SharedStorageTransfer:
        return SharedStorageTransfer(pair)


class SharedStorageTransfer:
    lease: float | None = None
    notices_death = True

    def __init__(self, pair: Pair) -> None:
        self._kind = pair.kind

    def prefill(self, body: JsonBody) -> JsonBody:
        if self._kind is Kind.MESSAGES and "thinking" in body.fields:
            # vLLM refuses a budget of thinking above the one token, unless the leg bears parameters.
            raise HandoverFailed(HandoverCause.THINKING)
        return one_token(body, self._kind)

    def decode(self, body: JsonBody, answer: bytes) -> JsonBody:
        return body
