"""What is measured of processes, and the two proxies that others are compared with."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time

import httpx
import pytest
import zmq

from benchmarks.data_path.events import END, RUN
from benchmarks.data_path.processes import Failed, Processes, cpu, free_port, resident, tree
from benchmarks.data_path.rows import FLOOR, HERE, PLAIN
from gateway.kvcache.events import BlockStored, decode
from tests.benchmarks.data_path.small import engines
from tests.support.wait import eventually


def test_cpu_is_counted_of_all_threads_and_of_children() -> None:
    own = [os.getpid()]
    before, began = cpu(own), time.process_time()
    while time.process_time() - began < 0.05:
        pass
    spent = time.process_time() - began
    assert cpu(own) - before == pytest.approx(spent, rel=0.5)
    with subprocess.Popen(["sleep", "60"]) as child:
        assert child.pid in tree(os.getpid())
        child.kill()
    assert cpu([child.pid]) == 0.0, "one that has ended is no error"
    assert resident(own) > 1_000_000


def test_a_process_that_says_nothing_is_told_with_its_last_words(tmp_path) -> None:
    with Processes(tmp_path) as processes:
        process = processes.start("broken", [sys.executable, "-c", "raise SystemExit('not today')"], speaks=True)
        with pytest.raises(Failed, match="not today"):
            processes.says(process)


def test_what_was_started_ends_with_us(tmp_path) -> None:
    script = (
        "import pathlib, signal\n"
        "from benchmarks.data_path.processes import Processes\n"
        f"with Processes(pathlib.Path({str(tmp_path)!r})) as processes:\n"
        "    for _ in range(8):\n"
        "        last = processes.start('sleep', ['sleep', '600']).pid\n"
        "    print(last, flush=True)\n"
        "    signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=HERE) as ours:
        assert ours.stdout is not None
        started = int(ours.stdout.readline())
        ours.terminate()
        ours.terminate()
        assert ours.wait(60) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(started, 0)


@pytest.mark.parametrize(("name", "module"), [(FLOOR, "floor"), (PLAIN, "plain")])
async def test_a_proxy_passes_answers_and_streams(name, module, tmp_path) -> None:
    with Processes(tmp_path) as processes:
        urls = engines(processes, "-", "-")
        port = free_port()
        processes.start(name, [sys.executable, "-m", f"benchmarks.data_path.{module}", str(port), *urls], cwd=HERE)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:
            for _ in range(600):
                with contextlib.suppress(httpx.TransportError):
                    await client.get("/health")
                    break
                await asyncio.sleep(0.05)
            body = {"messages": [], "user": "tokens=9 step=1"}
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
        process = processes.start("events", command, cwd=HERE, speaks=True)
        assert process.stdin is not None
        process.stdin.write(json.dumps([ids, other, other]) + "\n")
        process.stdin.flush()
        (address, replay), _ = json.loads(processes.says(process))
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
    await eventually(lambda: process.poll() is not None, "stopped")
