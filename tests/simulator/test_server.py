"""The server's life, and what it does beside answering: keys, ranks, ids, queues, disconnects."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from simulator.server import EngineServer
from simulator.settings import EngineSettings
from tests.simulator.conftest import Running, Start
from tests.support.wait import eventually

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "ignore_eos": True}
LONG = {**BODY, "max_tokens": 30_000}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_blocks(engine: Running, stream: bool) -> None:
    task = asyncio.create_task(engine.client.post(CHAT, json={**LONG, "stream": stream}))
    await eventually(lambda: engine.server.running == 1, "the request runs")
    assert engine.server.cache.usage > 0
    task.cancel()
    await eventually(lambda: engine.server.running == 0, "the abort")
    assert (engine.server.cache.usage, engine.server.aborted) == (0, 1)
    assert await engine.metric("vllm:request_success_total", finished_reason="abort") == 1


async def test_a_client_that_leaves_the_queue_is_forgotten(start: Start) -> None:
    running = await start(max_num_seqs=1)
    first = asyncio.create_task(running.client.post(CHAT, json=LONG))
    await eventually(lambda: running.server.running == 1, "the first runs")
    second = asyncio.create_task(running.client.post(CHAT, json=LONG))
    await eventually(lambda: running.server.waiting == 1, "the second waits")
    assert await running.metric("vllm:num_requests_waiting") == 1
    second.cancel()
    await eventually(lambda: running.server.waiting == 0, "it is gone")
    assert running.server.running == 1
    first.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    await eventually(lambda: running.server.aborted == 2, "both are counted")


async def test_an_answered_request_is_no_abort(engine: Running) -> None:
    await engine.chat(max_tokens=3)
    assert engine.server.aborted == 0
    assert await engine.metric("vllm:request_success_total", finished_reason="length") == 1


async def test_a_full_queue_is_a_503(start: Start) -> None:
    running = await start(max_num_seqs=1, max_queued=1)
    tasks = []
    for name in ("running", "waiting"):
        tasks.append(asyncio.create_task(running.client.post(CHAT, json=LONG)))
        await eventually(lambda name=name: getattr(running.server, name) == 1, name)  # type: ignore[misc]
    answer = await running.client.post(CHAT, json=BODY)
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "Service Unavailable")
    assert await running.metric("vllm:admission_rejections_total", reason="max_num_queued_reqs") == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_request_id_is_the_clients_and_not_echoed_unasked(engine: Running) -> None:
    answer = await engine.client.post(CHAT, json=BODY, headers={"X-Request-Id": "mine-1"})
    assert answer.json()["id"] == "chatcmpl-mine-1"
    assert "x-request-id" not in answer.headers
    answer = await engine.client.post(CHAT, json={**BODY, "request_id": "field"})
    assert answer.json()["id"] == "chatcmpl-field"
    answer = await engine.client.post("/v1/completions", json={"prompt": "x"}, headers={"X-Request-Id": "mine-2"})
    assert answer.json()["id"] == "cmpl-mine-2"


@pytest.mark.parametrize("stream", [True, False])
async def test_the_request_id_is_echoed_where_it_is_enabled(start: Start, stream: bool) -> None:
    running = await start(echo_request_id=True)
    answer = await running.client.post(CHAT, json={**BODY, "stream": stream}, headers={"X-Request-Id": "mine"})
    assert answer.headers["x-request-id"] == "mine"


async def test_a_rank_is_chosen_by_header(start: Start) -> None:
    running = await start(ranks=2)
    for rank in ("0", "1", "1"):
        answer = await running.client.post(CHAT, json=BODY, headers={"X-data-parallel-rank": rank})
        assert answer.status_code == 200
    counts = [await running.metric("vllm:request_success_total", engine=e, finished_reason="length") for e in "01"]
    assert counts == [1, 2]
    refused = await running.client.post(CHAT, json=BODY, headers={"X-data-parallel-rank": "3"})
    assert refused.status_code == 400
    assert "data_parallel_rank 3 is out of range [0, 2)." in refused.json()["error"]["message"]
    ignored = await running.client.post(CHAT, json=BODY, headers={"X-data-parallel-rank": "x"})
    assert ignored.status_code == 200


async def test_without_a_rank_the_lightest_takes_it(start: Start) -> None:
    running = await start(ranks=2)
    tasks = [asyncio.create_task(running.client.post(CHAT, json=LONG)) for _ in range(4)]
    await eventually(lambda: running.server.running == 4, "all run")
    assert [len(engine.running) for engine in running.server.service.engines] == [2, 2]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_key_guards_only_what_vllm_guards(start: Start) -> None:
    running = await start(api_key="secret")
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        answer = await running.client.post(CHAT, json=BODY, headers=headers)
        assert (answer.status_code, answer.json()) == (401, {"error": "Unauthorized"})
    right = {"Authorization": "Bearer secret"}
    assert (await running.client.post(CHAT, json=BODY, headers=right)).status_code == 200
    assert (await running.client.get("/v1/models")).status_code == 401
    for path in ("/health", "/metrics", "/kv_event_sources", "/version"):
        assert (await running.client.get(path)).status_code == 200


async def test_requests_are_on_record(engine: Running) -> None:
    await engine.client.post(CHAT, content=b"{not json", headers=[("X-A", "1"), ("X-A", "2")])
    (received,) = engine.server.received
    assert (received.method, received.path, received.body) == ("POST", CHAT, b"{not json")
    assert received.headers["x-a"] == "1"


async def test_resetting_the_cache_waits_for_running_requests(engine: Running) -> None:
    task = asyncio.create_task(engine.client.post(CHAT, json=LONG))
    await eventually(lambda: engine.server.running == 1, "it runs")
    assert (await engine.client.post("/reset_prefix_cache")).json() == {"success": False}
    task.cancel()
    await eventually(lambda: engine.server.running == 0, "it is gone")
    assert (await engine.client.post("/reset_prefix_cache")).json() == {"success": True}
    assert engine.server.cache.held == set()


async def test_development_routes_can_be_off(start: Start) -> None:
    running = await start(dev_mode=False)
    assert (await running.client.post("/reset_prefix_cache")).status_code == 404


async def test_closing_lets_short_answers_end(start: Start) -> None:
    running = await start(step_seconds=0.01)
    task = asyncio.create_task(running.client.post(CHAT, json={**BODY, "max_tokens": 5}))
    await eventually(lambda: running.server.running == 1, "it runs")
    await running.server.close()
    assert (await task).json()["usage"]["completion_tokens"] == 5
    with pytest.raises(httpx.ConnectError):
        await running.client.get("/health")


async def test_killing_ends_everything_at_once(engine: Running) -> None:
    task = asyncio.create_task(engine.client.post(CHAT, json=LONG))
    await eventually(lambda: engine.server.running == 1, "it runs")
    await engine.server.kill()
    with pytest.raises(httpx.RemoteProtocolError):
        await task
    with pytest.raises(httpx.ConnectError):
        await engine.client.get("/health")


async def test_a_restart_is_a_new_engine_at_the_same_place(start: Start) -> None:
    first = await start()
    await first.chat("a" * 100, max_tokens=1)
    before = await first.metric("process_start_time_seconds")
    await first.server.kill()
    second = await start(port=first.server.port)
    assert second.server.url == first.server.url
    assert await second.metric("process_start_time_seconds") > before
    assert (await second.chat("a" * 100, max_tokens=1))["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_taken_port_is_an_error(engine: Running) -> None:
    server = EngineServer(EngineSettings())
    with pytest.raises(OSError, match="in use"):
        await server.start(port=engine.server.port)
    await server.close()


async def test_prefixes_are_shared_between_models_names_and_not_with_adapters(start: Start) -> None:
    running = await start(aliases=("other",), adapters=("lora",))
    hits = []
    for model in ("sim", "other", "lora", "lora"):
        answer = await running.chat("a" * 100, model=model, max_tokens=1)
        assert answer["model"] == model
        hits.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)
    assert hits == [False, True, False, True]


async def test_models_are_listed_with_aliases_and_adapters(start: Start) -> None:
    running = await start(aliases=("other",), adapters=("lora",), max_model_len=999)
    cards = (await running.client.get("/v1/models")).json()["data"]
    seen = [(card["id"], card["parent"], card["max_model_len"]) for card in cards]
    assert seen == [("sim", None, 999), ("other", None, 999), ("lora", "sim", None)]


@pytest.mark.parametrize(
    "changes",
    [{"block_size": 0}, {"num_blocks": 1}, {"step_seconds": -1}, {"ranks": 0}, {"answer_tokens": 0}],
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        EngineSettings(**changes)
