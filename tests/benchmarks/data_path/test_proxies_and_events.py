"""The two proxies that others are compared with, and the events of the mock engines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

import httpx
import pytest
import zmq

from benchmarks.data_path.engines import ORDERS
from benchmarks.data_path.events import RUN
from benchmarks.data_path.rows import FLOOR, HERE, PLAIN
from gateway.commands.processes import Processes, free_port
from gateway.kvcache.events.decode import decode
from gateway.kvcache.index.block_events import BlockStored
from simulator.publisher import END
from tests.benchmarks.data_path.small import engines
from tests.support.wait import eventually


@pytest.mark.parametrize(("name", "module"), [(FLOOR, "floor"), (PLAIN, "plain")])
async def test_a_proxy_passes_answers_and_streams(name, module, tmp_path) -> None:
    with Processes(tmp_path) as processes:
        urls = engines(processes, "-", "-")
        port = free_port()
        processes.start(name, [sys.executable, "-m", f"benchmarks.data_path.{module}", str(port), *urls], cwd=HERE)
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", trust_env=False, verify=False, timeout=30
        ) as client:
            for _ in range(600):
                with contextlib.suppress(httpx.TransportError):
                    await client.get("/health")
                    break
                await asyncio.sleep(0.05)
            body = {"messages": [], ORDERS: "tokens=9 step=1"}
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.json()["usage"]["prompt_tokens"] == 9
            stream = await client.post("/v1/chat/completions", json={**body, "stream": True})
            assert stream.text.count("data: {") == 64
            assert stream.text.endswith("data: [DONE]\n\n")


async def test_events_are_the_engines_and_can_be_replayed(tmp_path) -> None:
    ids = list(range(100, 150))
    other = [*ids[:20], *range(20)]
    with Processes(tmp_path) as processes, zmq.Context() as context:
        command = [sys.executable, "-m", "benchmarks.data_path.events", "2"]
        process = processes.start("events", command, cwd=HERE, talks=True)
        process.write_line(json.dumps([ids, other, other]))
        (address, replay), _ = json.loads(process.line())
        with context.socket(zmq.SUB) as heard, context.socket(zmq.DEALER) as asking:
            for socket in (heard, asking):
                socket.rcvtimeo = 30_000
                socket.linger = 0
            heard.subscribe(b"")
            heard.connect(address)
            _, number, payload = heard.recv_multipart()
            assert any(isinstance(event, BlockStored) for event in decode(payload).events)
            asking.connect(replay)
            asking.send_multipart([b"", (0).to_bytes(8, "big")])
            replayed = []
            while (message := asking.recv_multipart())[2] != END:
                replayed.append(message[2:])
        assert [int.from_bytes(each, "big") for each, _ in replayed] == list(range(len(replayed)))
        (whole,), (rest,), work, *_ = (decode(known).events for _, known in replayed)
        assert isinstance(whole, BlockStored)
        assert list(whole.token_ids) == ids[:48], "whole blocks"
        assert whole.parent_block_hash is None
        assert isinstance(rest, BlockStored)
        assert list(rest.token_ids) == other[16:32], "the block before it has been said"
        assert rest.parent_block_hash == whole.block_hashes[0]
        assert len({*whole.block_hashes, *rest.block_hashes}) == 4
        assert [len(event.block_hashes) for event in work] == [RUN], "of the third prompt there was nothing to say"
        assert number < END
    await eventually(lambda: not process.running, "stopped")
