"""SGLang: both legs are the client's body, and meet in one room."""

from __future__ import annotations

from random import Random

import pytest

from gateway.proxy.serving.connectors.sglang import ROOMS, Sglang


async def test_both_legs_bear_the_same_room(make_pair, make_body, read):
    transfer = await Sglang(Random(1)).open(make_pair())
    body = make_body(messages=[], stream=True, logprobs=True, max_tokens=9)
    prefill, decode = read(transfer.prefill(body)), read(transfer.decode(body, b""))
    assert prefill == {**decode, "stream": False}
    room = decode.pop("bootstrap_room")
    assert 0 <= room < ROOMS
    assert decode == {**read(body), "bootstrap_host": "p.example", "bootstrap_port": 8998}


async def test_no_two_requests_share_a_room(make_pair, make_body, read):
    connector = Sglang(Random(1))
    rooms = {read((await connector.open(make_pair())).prefill(make_body()))["bootstrap_room"] for _ in range(100)}
    assert len(rooms) == 100


@pytest.mark.parametrize(("url", "host"), [("http://[fd00::1]:8000", "fd00::1"), ("http://10.0.0.1", "10.0.0.1")])
async def test_the_host_is_the_prefill_engines(url, host, make_pair, make_body, read):
    transfer = await Sglang(Random(1)).open(make_pair(url=url))
    assert read(transfer.decode(make_body(), b""))["bootstrap_host"] == host
