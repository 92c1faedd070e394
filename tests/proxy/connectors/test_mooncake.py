"""Mooncake: a transfer's name on both legs, and the prefill engine's id from its bootstrap server."""

from __future__ import annotations

import orjson
import pytest

from gateway.framework import Kind
from gateway.proxy.connectors import HandoverFailed
from gateway.proxy.connectors.mooncake import KNOWN_FOR, Mooncake

ONE = {"0": {"engine_id": "e0", "worker_addr": {"0": {"0": "tcp://p:1"}}}}
TWO = {**ONE, "1": {"engine_id": "e1", "worker_addr": {}}}


class Bootstrap:
    """Answers ``said`` to every question, and keeps them."""

    def __init__(self, said: object) -> None:
        self.said = said
        self.asked: list[str] = []
        self.time = 0.0

    async def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        if isinstance(self.said, Exception):
            raise self.said
        return self.said if isinstance(self.said, bytes) else orjson.dumps(self.said)

    @property
    def connector(self) -> Mooncake:
        return Mooncake(self.fetch, lambda: self.time)


async def test_the_two_legs(make_pair, make_body, read):
    server = Bootstrap(ONE)
    transfer = await server.connector.open(make_pair())
    body = make_body(messages=[], stream=True, stop=["x"], stop_token_ids=[3])
    prefill, decode = read(transfer.prefill(body)), read(transfer.decode(body, b""))
    name = prefill["kv_transfer_params"].pop("transfer_id")
    assert prefill["kv_transfer_params"] == {"do_remote_decode": True, "do_remote_prefill": False}
    assert prefill["ignore_eos"] is True, "a prefill that ends by anything but its length is not sent on"
    assert "stop" not in prefill
    assert "stop_token_ids" not in prefill
    assert decode == {
        **read(body),
        "kv_transfer_params": {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "transfer_id": name,
            "remote_engine_id": "e0",
            "remote_bootstrap_addr": "http://p.example:8998",
        },
    }
    assert server.asked == ["http://p.example:8998/query"]


async def test_each_rank_has_its_own_id(make_pair, make_body, read):
    connector = Bootstrap(TWO).connector
    for rank, name in ((0, "e0"), (1, "e1")):
        transfer = await connector.open(make_pair(rank=rank))
        assert read(transfer.decode(make_body(), b""))["kv_transfer_params"]["remote_engine_id"] == name


async def test_a_rank_that_cannot_be_told(make_pair):
    connector = Bootstrap(TWO).connector
    for rank in (None, 2):
        with pytest.raises(HandoverFailed, match="rank"):
            await connector.open(make_pair(rank=rank))


async def test_ids_are_remembered_for_a_while_and_asked_again_after_a_restart(make_pair):
    server = Bootstrap(ONE)
    connector, pair = server.connector, make_pair()
    await connector.open(pair)
    await connector.open(pair)
    assert len(server.asked) == 1
    pair.prefill.engine.started = 2.0
    await connector.open(pair)
    assert len(server.asked) == 2
    server.time += KNOWN_FOR + 1
    await connector.open(pair)
    assert len(server.asked) == 3


@pytest.mark.parametrize("said", [b"", b"[]", b"{}", b'{"0": {}}', b'{"0": {"engine_id": 5}}', b'{"0": 1}', b"\xff"])
async def test_what_is_no_answer(said, make_pair):
    with pytest.raises(HandoverFailed) as failure:
        await Bootstrap(said).connector.open(make_pair())
    assert failure.value.cause == "bootstrap"


async def test_nobody_answers(make_pair):
    with pytest.raises(HandoverFailed):
        await Bootstrap(HandoverFailed("bootstrap", "refused")).connector.open(make_pair())


async def test_an_ipv6_address_is_bracketed(make_pair, make_body, read):
    server = Bootstrap(ONE)
    await server.connector.open(make_pair(Kind.CHAT, "http://[fd00::1]:8000"))
    assert server.asked == ["http://[fd00::1]:8998/query"]
