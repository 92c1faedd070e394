"""vLLM's NixlConnector: the prefill engine keeps the KV, and says where; the decode engine fetches it (pull), or names
its own blocks and has them written (push).

The parameters that come with the prefill's answer go to the decode engine byte for byte: what of them it needs changes
with vLLM's versions and connectors. But never incomplete: vLLM 0.32 hangs on such a request for ever, or dies of it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from gateway.api.body import JsonBody
from gateway.proxy.serving.connectors.contract import Pair
from gateway.proxy.serving.connectors.one_token import one_token
from gateway.proxy.serving.handover_failures import HandoverCause, HandoverFailed

ASK = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What vLLM's own example proxy sends to the prefill engine."""

PULL_LEASE = 20.0
"""Seconds. vLLM's lease is 30 (``kv_lease_duration``), from the end of the prefill; the decode engine renews it once
the request has reached it. A fetch after its end is not refused: it reads whatever is in those blocks by then."""

PUSH_LEASE = 300.0
"""Seconds. A prefill engine waits 480 (``push_registration_timeout``) for a decode engine to name its blocks."""


class _Answer(msgspec.Struct):
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")


_Block = Annotated[int, msgspec.Meta(ge=0)]


class _Parameters(msgspec.Struct):
    """What vLLM's scheduler reads without asking whether it is there."""

    do_remote_prefill: bool
    remote_engine_id: str
    remote_request_id: str
    remote_host: str
    remote_port: int
    tp_size: int
    remote_block_ids: list[_Block | list[_Block]] | None = None
    transfer_mode: str = "pull"


_ANSWER = msgspec.json.Decoder(_Answer)
_PARAMETERS = msgspec.json.Decoder(_Parameters)


class Nixl:
    at_once = False
    decode_can_compute = True

    async def open(self, pair: Pair) -> NixlTransfer:
        return NixlTransfer(pair)


class NixlTransfer:
    def __init__(self, pair: Pair) -> None:
        self._kind = pair.kind
        self.lease: float | None = PULL_LEASE
        self.notices_death = True

    def prefill(self, body: JsonBody) -> JsonBody:
        leg = one_token(body, self._kind)
        leg.set("kv_transfer_params", ASK)
        return leg

    def decode(self, body: JsonBody, answer: bytes) -> JsonBody:
        raw, parameters = _read(answer)
        if parameters.transfer_mode == "push":
            self.lease, self.notices_death = PUSH_LEASE, False
        elif not any(group if isinstance(group, list) else [group] for group in parameters.remote_block_ids or ()):
            raise HandoverFailed(HandoverCause.PREFILL_INCOMPLETE, "remote_block_ids")
        leg = body.copy()
        leg.set("kv_transfer_params", raw)
        return leg


def _read(answer: bytes) -> tuple[msgspec.Raw, _Parameters]:
    try:
        raw = _ANSWER.decode(answer).kv_transfer_params
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HandoverFailed(HandoverCause.PREFILL_MALFORMED, str(error)) from None
    if bytes(raw).strip() == b"null":
        raise HandoverFailed(HandoverCause.PREFILL_INCOMPLETE, "no kv_transfer_params: has the engine a KV connector?")
    try:
        parameters = _PARAMETERS.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HandoverFailed(HandoverCause.PREFILL_INCOMPLETE, str(error)) from None
    if not (parameters.do_remote_prefill and parameters.remote_engine_id and parameters.remote_request_id):
        raise HandoverFailed(
            HandoverCause.PREFILL_INCOMPLETE, "do_remote_prefill, remote_engine_id or remote_request_id"
        )
    return raw, parameters
