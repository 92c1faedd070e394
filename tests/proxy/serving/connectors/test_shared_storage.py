"""Shared storage: one token on the prefill engine, and the client's own bytes on the decode engine."""

from __future__ import annotations

from gateway.api.body import JsonBody
from gateway.api.settings import PassThroughSettings
from gateway.proxy.serving.connectors.shared_storage import SharedStorage


async def test_the_two_legs(make_pair, read):
    raw = b'{"model": "sim",  "messages": [], "stream": true}'
    transfer = await SharedStorage().open(make_pair())
    body = JsonBody(raw, PassThroughSettings())
    assert read(transfer.prefill(body))["max_tokens"] == 1
    assert transfer.decode(body, b"{}").encode("sim") == raw
    assert transfer.lease is None
