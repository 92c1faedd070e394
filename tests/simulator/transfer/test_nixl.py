"""NIXL between two engines: what moves, what stays, what is counted, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
import os
import re
from typing import Any

import httpx
import msgspec
import pytest
import zmq
import zmq.asyncio

from tests.simulator.conftest import DATA, Running, Start
from tests.simulator.transfer.conftest import CHAT, PREFILL, MakePair, Pair, body, plain
from tests.support.pace import pace
from tests.support.wait import eventually
from tests.support.wire import Connection, ScriptedServer

INTERNAL = {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}


def captured(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text())


async def counter(running: Running, name: str) -> float:
    return await running.metric(f"vllm:nixl_{name}_total")


def events(text: str) -> list[Any]:
    data = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [json.loads(line) if line != "[DONE]" else line for line in data]


async def in_progress(running: Running, count: int = 1) -> None:
    engine = running.server.service.engines[0]
    await eventually(lambda: engine.fetching["in_progress"] == count, f"{count} wait for KV")


class TestCaptured:
    async def test_both_legs_and_what_they_count(self, pair: MakePair, tokenizer: str) -> None:
        """The captured exchange once more, token for token as long and with as much of it cached."""
        two = await pair(tokenizer=tokenizer, block_size=32, served_name="tiny", report_cached_tokens=False)
        asked, told = captured("nixl1_1_prefill_req"), captured("nixl1_1_prefill_resp")
        ids = told["prompt_token_ids"]
        await two.prefill.client.post("/v1/completions", json={"prompt": ids[:40], "max_tokens": 1})
        before = [await scrape(running) for running in (two.prefill, two.decode)]
        asked["kv_transfer_params"]["prompt_token_ids"] = ids
        headers = {"X-Request-Id": "pd-nixl1-1"}
        first = (await two.prefill.client.post(CHAT, json=asked, headers=headers)).json()
        assert list(first) == list(told)
        ours, theirs = first["kv_transfer_params"], told["kv_transfer_params"]
        assert list(ours) == list(theirs)
        same = set(ours) - {"remote_block_ids", "remote_engine_id", "remote_request_id", "remote_port"}
        assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}
        pattern = r"chatcmpl-pd-nixl1-1-[0-9a-f]{8}"
        assert re.fullmatch(pattern, ours["remote_request_id"])
        assert re.fullmatch(pattern, theirs["remote_request_id"])
        assert len(ours["remote_block_ids"][0]) == len(theirs["remote_block_ids"][0])
        asked = captured("nixl1_2_decode_req")
        asked["kv_transfer_params"] = {**ours, "prompt_token_ids": ids}
        second = (await two.decode.client.post(CHAT, json=asked, headers=headers)).json()
        told = captured("nixl1_2_decode_resp")
        assert list(second) == list(told)
        assert (second["kv_transfer_params"], second["usage"]) == (None, told["usage"])
        await two.settled()
        after = [await scrape(running) for running in (two.prefill, two.decode)]
        for side, old, new in zip(("prefill", "decode"), before, after, strict=True):
            for name, delta in captured("nixl1_3_metric_delta")[side].items():
                if "descriptors_sum" not in name and "seconds_sum" not in name:
                    assert new[name] - old[name] == delta, name

    async def test_a_decode_leg_without_its_prefill_engine(self, start: Start) -> None:
        failed, recomputed = captured("fail_bad_port"), captured("recompute_dead_port")
        quick = {"handshake_timeout": 0.05}
        running = await start(**quick)
        answer = await running.client.post(CHAT, json={**body(), "kv_transfer_params": failed["kv"]})
        assert (answer.status_code, answer.text) == tuple(failed["result"])
        running = await start(**quick, kv_load_failure_policy="recompute")
        answer = await running.client.post(CHAT, json={**body(), "kv_transfer_params": recomputed["kv"]})
        assert answer.status_code == recomputed["status"]
        assert list(answer.json()) == list(recomputed["body"])
        assert answer.json()["kv_transfer_params"] is None


async def scrape(running: Running) -> dict[str, float]:
    lines = (await running.client.get("/metrics")).text.splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


class TestPull:
    async def test_the_answer_is_the_prefill_engines_own(self, pair: MakePair) -> None:
        two = await pair()
        await plain(two.prefill, body("a" * 60))
        for asked in (body(), body("b" * 300), body("a" * (96 - 19))):  # the last one ends with a block
            params = await two.begin(asked)
            assert two.prefill.server.cache.usage > 0, "its blocks stay until they are read"
            answer = (await two.end(asked, params)).json()
            assert answer["choices"] == await plain(two.prefill, asked)
            details = answer["usage"]["prompt_tokens_details"]
            assert details["cached_tokens"] == params["remote_prefill_cached_tokens"]
        await two.settled()
        assert await counter(two.decode, "num_failed_transfers") == 0
        assert await counter(two.prefill, "num_kv_expired_reqs") == 0
        assert await counter(two.prefill, "num_notifications_after_expiry") == 0

    async def test_a_streamed_answer_is_the_same(self, pair: MakePair) -> None:
        two = await pair()
        asked = body()
        whole = await plain(two.prefill, asked)
        answer = await two.end({**asked, "stream": True}, await two.begin(asked))
        pieces = [event["choices"][0]["delta"]["content"] for event in events(answer.text)[:-1]]
        assert "".join(pieces) == whole[0]["message"]["content"]

    async def test_blocks_that_are_here_are_not_fetched(self, pair: MakePair) -> None:
        two = await pair()
        await plain(two.decode, body("a" * 60))
        await two.split(body("a" * 90))
        # Of 109 tokens 64 are here: four whole blocks, and three of seven are fetched.
        assert await two.decode.metric("vllm:nixl_bytes_transferred_sum") == 3 * 16 * 2048
        assert await two.decode.metric("vllm:external_prefix_cache_hits_total") == 109 - 64
        assert await two.decode.metric("vllm:prompt_tokens_by_source_total", source="local_compute") == 79
        await two.settled()

    async def test_what_was_received_is_announced(self, pair: MakePair) -> None:
        two = await pair()
        await two.split(body())
        assert len(two.decode.server.cache.held & two.prefill.server.cache.held) == 6, "of 109 tokens"

    async def test_the_fetch_is_seen_in_the_metrics(self, pair: MakePair) -> None:
        two = await pair(decode={"kv_transfer_seconds": 100})
        leg = asyncio.create_task(two.end(body(), await two.begin(body())))
        await in_progress(two.decode)
        stage = "vllm:num_requests_kv_fetch_by_stage"
        assert await two.decode.metric(stage, stage="in_progress") == 1
        assert await two.decode.metric("vllm:num_requests_waiting_by_reason", reason="deferred") == 1
        assert await two.decode.metric("vllm:num_requests_waiting") == 1
        assert two.decode.server.cache.usage > 0, "its blocks are taken"
        leg.cancel()

    async def test_others_are_served_meanwhile(self, pair: MakePair) -> None:
        two = await pair(decode={"kv_transfer_seconds": 100})
        leg = asyncio.create_task(two.end(body(), await two.begin(body())))
        await in_progress(two.decode)
        assert await plain(two.decode, body("else")) == await plain(two.prefill, body("else"))
        leg.cancel()

    async def test_the_handshake_is_made_once(self, pair: MakePair) -> None:
        two = await pair()
        params = await two.begin(body())
        assert (await two.end(body(), params)).status_code == 200
        # The remote engine is known by its id now: its address is not looked at.
        params = {**await two.begin(body("again")), "remote_port": 1}
        assert (await two.end(body("again"), params)).status_code == 200

    async def test_many_at_once(self, pair: MakePair) -> None:
        two = await pair()
        bodies = [body(letter * 40, 3) for letter in "abcdefghij"]
        answers = await asyncio.gather(*(two.split(asked) for asked in bodies))
        for asked, answer in zip(bodies, answers, strict=True):
            assert answer["choices"] == await plain(two.prefill, asked)
        await two.settled()

    async def test_engines_of_other_block_sizes_and_hashes_fit(self, pair: MakePair) -> None:
        two = await pair(decode={"block_size": 64})
        assert (await two.split(body("a" * 200)))["choices"] == await plain(two.prefill, body("a" * 200))

    async def test_every_protocol_that_carries_parameters(self, pair: MakePair) -> None:
        two = await pair()
        for path, own in (
            ("/v1/completions", {"prompt": "p" * 60, "max_tokens": 4}),
            ("/v1/messages", {**body(), "max_tokens": 4}),
            ("/v1/responses", {"input": "r" * 60, "max_output_tokens": 4}),
        ):
            first = await two.prefill.client.post(path, json={**own, "kv_transfer_params": {"do_remote_decode": True}})
            params = first.json()["kv_transfer_params"]
            assert params["remote_num_tokens"] > 40
            second = await two.decode.client.post(path, json={**own, "kv_transfer_params": params})
            assert (second.status_code, second.json().get("kv_transfer_params")) == (200, None)
        await two.settled()
        assert await two.decode.metric("vllm:nixl_xfer_time_seconds_count") == 3

    async def test_somebody_elses_blocks_make_another_answer(self, pair: MakePair) -> None:
        """What a gateway would do that mixes up two requests: nobody notices but the reader."""
        two = await pair()
        params = await two.begin(body("one"))
        answer = await two.end(body("two"), params)
        assert answer.status_code == 200
        assert answer.json()["choices"] != await plain(two.prefill, body("two"))
        params = {**await two.begin(body("one")), "remote_block_ids": [[1]]}
        assert (await two.end(body("one"), params)).json()["choices"] != await plain(two.prefill, body("one"))

    async def test_a_full_pool_waits_for_blocks_that_others_keep(self, pair: MakePair) -> None:
        two = await pair(prefill={"num_blocks": 12})
        params = await two.begin(body())
        blocked = asyncio.create_task(plain(two.prefill, body("b" * 90)))
        await eventually(lambda: two.prefill.server.waiting == 1, "there is no room")
        assert (await two.end(body(), params)).status_code == 200
        assert await blocked == await plain(two.decode, body("b" * 90))


class TestPrefill:
    async def test_a_streamed_leg_carries_nothing_and_keeps_its_blocks(self, start: Start) -> None:
        running = await start(kv_lease_seconds=0.05)
        leg = {**body(max_tokens=1), "stream": True, "kv_transfer_params": {"do_remote_decode": True}}
        assert "kv_transfer_params" not in (await running.client.post(CHAT, json=leg)).text
        await eventually(lambda: running.server.cache.usage == 0, "the lease ends")
        assert await counter(running, "num_kv_expired_reqs") == 1

    async def test_a_leg_that_its_client_left_keeps_nothing(self, start: Start) -> None:
        running = await start(step_seconds=0.01)
        leg = {**body(max_tokens=1000), "kv_transfer_params": {"do_remote_decode": True}}
        sent = asyncio.create_task(running.client.post(CHAT, json=leg))
        await eventually(lambda: running.server.running == 1, "it runs")
        sent.cancel()
        await eventually(lambda: running.server.cache.usage == 0, "it is gone")
        assert await counter(running, "num_kv_expired_reqs") == 0

    async def test_a_stop_string_ends_it_without_parameters(self, start: Start) -> None:
        running = await start()
        [choice] = await plain(running, body())
        leg = {**body(), "stop": choice["message"]["content"][0], "kv_transfer_params": {"do_remote_decode": True}}
        answer = (await running.client.post(CHAT, json=leg)).json()
        assert (answer["choices"][0]["finish_reason"], answer["kv_transfer_params"]) == ("stop", None)
        assert running.server.cache.usage == 0

    async def test_what_is_fetched_is_no_new_cache(self, pair: MakePair) -> None:
        """The decode leg's usage tells what the prefill engine found, and counts nothing as created."""
        two = await pair()
        first = {**body("a" * 100, max_tokens=1), "kv_transfer_params": PREFILL}
        told = (await two.prefill.client.post(CHAT, json=first)).json()
        assert told["usage"]["prompt_tokens_details"]["created_cache_tokens"] == 112
        answer = (await two.end(body("a" * 100), told["kv_transfer_params"])).json()
        details = answer["usage"]["prompt_tokens_details"]
        assert (details["cached_tokens"], details["created_cache_tokens"]) == (0, 0)

    async def test_an_end_of_text_keeps_them(self, pair: MakePair) -> None:
        two = await pair(answer_tokens=1)
        asked = {**body(), "ignore_eos": False}
        params = await two.begin(asked)
        answer = (await two.end(asked, params)).json()
        assert answer["choices"][0]["finish_reason"] == "stop"
        await two.settled()

    async def test_several_sequences_tell_the_last_and_keep_all(self, start: Start) -> None:
        running = await start(kv_lease_seconds=0.1)
        leg = {**body(max_tokens=1), "n": 2, "kv_transfer_params": {"do_remote_decode": True}}
        params = (await running.client.post(CHAT, json=leg)).json()["kv_transfer_params"]
        assert params["remote_request_id"].startswith("1_chatcmpl-")
        await eventually(lambda: running.server.cache.usage == 0, "both leases end")
        assert await counter(running, "num_kv_expired_reqs") == 2

    async def test_each_rank_has_its_own_name_and_port(self, pair: MakePair) -> None:
        two = await pair(prefill={"ranks": 2})
        found = [await two.begin(body(), **{"X-data-parallel-rank": str(rank)}) for rank in (0, 1)]
        assert [params["remote_engine_id"][-4:] for params in found] == ["_dp0", "_dp1"]
        assert found[0]["remote_engine_id"][:-4] == found[1]["remote_engine_id"][:-4]
        assert found[0]["remote_port"] != found[1]["remote_port"]
        for params in found:
            assert (await two.end(body(), params)).json()["choices"] == await plain(two.prefill, body())
        assert await two.decode.metric("vllm:nixl_xfer_time_seconds_count") == 2
        await two.settled()

    async def test_ports_of_ranks_follow_each_other_and_the_host_is_the_setting(self, start: Start) -> None:
        free = await start()
        base = 20_000 + 2 * (os.getpid() % 5000)  # below the ports that the system hands out to other tests
        running = await start(ranks=2, side_channel_port=base, side_channel_host="localhost")
        two = Pair(running, free)
        params = await two.begin(body(), **{"X-data-parallel-rank": "1"})
        assert (params["remote_host"], params["remote_port"]) == ("localhost", base + 1)
        assert (await two.end(body(), params)).status_code == 200


class TestLeases:
    async def test_nobody_reads(self, pair: MakePair) -> None:
        two = await pair(kv_lease_seconds=0.05)
        params = await two.begin(body())
        await eventually(lambda: two.prefill.server.cache.usage == 0, "the lease ends")
        assert await counter(two.prefill, "num_kv_expired_reqs") == 1
        # Read all the same, it "succeeds", and the answer is another one.
        answer = await two.end(body(), params)
        right = await plain(two.prefill, body())
        assert answer.status_code == 200
        wrong = answer.json()["choices"][0]["message"]["content"]
        assert all(ours != theirs for ours, theirs in zip(wrong, right[0]["message"]["content"], strict=True))
        assert await counter(two.prefill, "num_notifications_after_expiry") == 1
        assert await counter(two.decode, "num_failed_transfers") == 0

    async def test_heartbeats_keep_what_is_waited_for(self, pair: MakePair, monkeypatch: pytest.MonkeyPatch) -> None:
        """The load takes several leases' time."""
        pace(monkeypatch)
        two = await pair(kv_lease_seconds=0.4, decode={"kv_transfer_seconds": 1 / 109})
        assert (await two.split(body()))["choices"] == await plain(two.prefill, body())
        assert await counter(two.prefill, "num_kv_expired_reqs") == 0
        await two.settled()

    async def test_without_tp_size_there_are_none(self, pair: MakePair) -> None:
        two = await pair(kv_lease_seconds=0.12, decode={"kv_transfer_seconds": 0.6 / 109})
        params = await two.begin(body())
        del params["tp_size"]
        answer = await two.end(body(), params)
        assert answer.json()["choices"] != await plain(two.prefill, body())
        assert await counter(two.prefill, "num_kv_expired_reqs") == 1

    async def test_what_waits_in_the_queue_is_kept_too(self, pair: MakePair, monkeypatch: pytest.MonkeyPatch) -> None:
        pace(monkeypatch)
        # A busy machine may stand still for half a second, in which nothing is renewed.
        two = await pair(kv_lease_seconds=1.0, decode={"max_num_seqs": 1, "step_seconds": 0.025})
        busy = asyncio.create_task(plain(two.decode, body("busy", 80)))
        await eventually(lambda: two.decode.server.running == 1, "it is busy")
        leg = asyncio.create_task(two.end(body(), await two.begin(body())))
        await eventually(lambda: two.decode.server.waiting == 1, "it waits")
        stages = "vllm:num_requests_kv_fetch_by_stage"
        assert await two.decode.metric(stages, stage="waiting_to_start") == 1
        answer = await leg
        assert busy.done(), "two leases later"
        assert answer.json()["choices"] == await plain(two.prefill, body())
        assert await counter(two.prefill, "num_kv_expired_reqs") == 0


class TestFailures:
    @pytest.mark.parametrize("streamed", [False, True])
    async def test_a_dead_engine(self, pair: MakePair, streamed: bool) -> None:
        two = await pair(handshake_timeout=0.05)
        params = await two.begin(body())
        await two.prefill.server.kill()
        answer = await two.end({**body(), "stream": streamed}, params)
        if streamed:
            assert (answer.status_code, events(answer.text)[1:]) == (200, [{"error": INTERNAL}, "[DONE]"])
        else:
            assert (answer.status_code, answer.json()) == (500, {"error": INTERNAL})
        assert await counter(two.decode, "num_failed_transfers") >= 1
        assert await two.decode.metric("vllm:request_success_total", finished_reason="error") == 1
        assert (await two.decode.client.get("/health")).status_code == 200
        assert two.decode.server.cache.usage == 0

    async def test_anthropics_shape(self, pair: MakePair) -> None:
        two = await pair(handshake_timeout=0.05)
        params = await two.begin(body())
        await two.prefill.server.kill()
        asked = {**body(), "kv_transfer_params": params}
        answer = await two.decode.client.post("/v1/messages", json=asked)
        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "InternalServerError")

    async def test_a_silent_port_is_given_up(self, pair: MakePair) -> None:
        two = await pair(handshake_timeout=0.05)
        async with ScriptedServer(Connection.gone) as silent:
            params = {**await two.begin(body()), "remote_port": silent.port}
            assert (await two.end(body(), params)).status_code == 500

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("remote_engine_id", "somebody-else"),
            ("remote_engine_id", None),
            ("remote_port", "no port"),
            ("tp_size", "one"),
        ],
    )
    async def test_not_the_engine_that_was_meant(self, pair: MakePair, field: str, value: Any) -> None:
        two = await pair(kv_lease_seconds=0.05)
        params = {**await two.begin(body()), field: value}
        assert (await two.end(body(), params)).status_code == 500
        await two.settled()

    @pytest.mark.parametrize("other", [{"version": "0.31.0"}, {"served_name": "another"}], ids=str)
    async def test_engines_that_do_not_fit(self, pair: MakePair, other: dict[str, Any]) -> None:
        two = await pair(kv_lease_seconds=0.05, decode=other)
        answer = await two.end(body(), await two.begin(body()))
        assert (answer.status_code, answer.json()) == (500, {"error": INTERNAL})
        await two.settled()

    async def test_recomputing_gives_the_right_answer(self, pair: MakePair) -> None:
        two = await pair(handshake_timeout=0.05, decode={"kv_load_failure_policy": "recompute"})
        params = await two.begin(body())
        right = await plain(two.prefill, body())
        await two.prefill.server.kill()
        assert (await two.end(body(), params)).json()["choices"] == right
        assert await two.decode.metric("vllm:prompt_tokens_by_source_total", source="local_compute") == 109
        assert await two.decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == 0
        assert await counter(two.decode, "num_failed_transfers") == 1

    async def test_an_engine_that_dies_later_fails_reads_and_then_fast(self, pair: MakePair) -> None:
        two = await pair(handshake_timeout=3)
        params = await two.begin(body())
        await two.split(body("first"))
        await two.prefill.server.kill()
        for _ in range(2):
            assert (await two.end(body(), params)).status_code == 500

    async def test_a_new_engine_at_the_same_address_is_not_the_old_one(self, start: Start) -> None:
        decode, old = await start(handshake_timeout=20), await start()
        two = Pair(old, decode)
        assert (await two.split(body()))["choices"]
        params = await two.begin(body("later"))
        port = params["remote_port"]
        await old.server.close()
        two = Pair(await start(side_channel_port=port), decode)
        assert (await two.end(body("later"), params)).status_code == 500, "its engine id is gone"
        assert (await two.split(body("later")))["choices"] == await plain(two.prefill, body("later"))

    async def test_a_client_that_leaves_while_it_waits(self, pair: MakePair) -> None:
        for streamed in (False, True):
            two = await pair(decode={"kv_transfer_seconds": 0.2 / 109})
            params = await two.begin(body())
            leg = asyncio.create_task(two.end({**body(), "stream": streamed}, params))
            await in_progress(two.decode)
            leg.cancel()
            await eventually(lambda: two.decode.server.aborted == 1, "it is aborted")  # noqa: B023
            await two.settled()
            assert await counter(two.prefill, "num_kv_expired_reqs") == 0

    async def test_a_client_that_leaves_before_it_is_scheduled(self, pair: MakePair) -> None:
        two = await pair(decode={"max_num_seqs": 1, "step_seconds": 0.01})
        busy = asyncio.create_task(plain(two.decode, body("busy", 10_000)))
        await eventually(lambda: two.decode.server.running == 1, "it is busy")
        params = await two.begin(body())
        leg = asyncio.create_task(two.end({**body(), "stream": True}, params))
        await eventually(lambda: two.decode.server.waiting == 1, "it waits")
        leg.cancel()
        await eventually(lambda: two.prefill.server.cache.usage == 0, "its blocks are freed")
        busy.cancel()

    @pytest.mark.parametrize(
        ("wrong", "status"), [({"model": "nope"}, 404), ({"temperature": -1}, 400), ({"n": 0}, 400)]
    )
    async def test_a_refused_leg_frees_the_blocks(self, pair: MakePair, wrong: dict[str, Any], status: int) -> None:
        two = await pair()
        answer = await two.end({**body(), **wrong}, await two.begin(body()))
        assert answer.status_code == status
        await two.settled()
        assert await counter(two.prefill, "num_kv_expired_reqs") == 0

    async def test_a_full_queue_frees_the_blocks(self, pair: MakePair) -> None:
        two = await pair(decode={"max_queued": 0})
        assert (await two.end(body(), await two.begin(body()))).status_code == 503
        await two.settled()

    async def test_what_is_no_request_at_all_is_not_told(self, pair: MakePair) -> None:
        two = await pair(kv_lease_seconds=0.2)
        params = await two.begin(body())
        answer = await two.decode.client.post(CHAT, json={"kv_transfer_params": params})
        assert answer.status_code == 400
        await two.settled()
        assert await counter(two.prefill, "num_kv_expired_reqs") == 1


class TestMalformed:
    async def test_without_an_address_it_hangs_and_then_kills(self, pair: MakePair) -> None:
        two = await pair(kv_lease_seconds=0.05)
        params = await two.begin(body())
        del params["remote_request_id"]
        leg = asyncio.create_task(two.end(body(), params))
        await in_progress(two.decode)
        leg.cancel()
        await eventually(lambda: two.decode.server.died.is_set(), "its client left")

    async def test_streamed_it_hangs_and_its_blocks_are_lost(self, pair: MakePair) -> None:
        two = await pair(kv_lease_seconds=0.05)
        params = await two.begin(body())
        del params["remote_host"]
        leg = asyncio.create_task(two.end({**body(), "stream": True}, params))
        await in_progress(two.decode)
        leg.cancel()
        await eventually(lambda: two.decode.server.aborted == 1, "its client left")
        assert two.decode.server.cache.usage > 0
        assert not two.decode.server.died.is_set()

    @pytest.mark.parametrize("blocks", [None, [], "1,2", [1, 2], [[1], [2]], {"0": [1]}])
    async def test_blocks_of_another_shape_kill(self, pair: MakePair, blocks: Any) -> None:
        two = await pair(kv_lease_seconds=0.05)
        params = {**await two.begin(body()), "remote_block_ids": blocks}
        with pytest.raises(httpx.RemoteProtocolError):
            await two.end(body(), params)
        assert two.decode.server.died.is_set()


async def test_a_real_handshake_is_answered(engine: Running) -> None:
    """As vLLM's worker asks: a REQ socket, and no word of what else goes over the side channel."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.REQ)
    socket.connect(f"tcp://127.0.0.1:{engine.server.service.connectors[0].port}")  # type: ignore[attr-defined]
    await socket.send(msgspec.msgpack.encode((b"get_meta_msg", 0, 0)))
    async with asyncio.timeout(30):
        payload, clock = await socket.recv_multipart()
    assert set(msgspec.msgpack.decode(payload)) == {"compatibility_hash", "agent_metadata_bytes"}
    assert isinstance(msgspec.msgpack.decode(clock), float)
    socket.close(linger=0)
    context.term()


@pytest.mark.parametrize("frames", [[b""], [b"", b"\xc1"], [b"", b"\x93\x01"], [b"", msgspec.msgpack.encode([[], 1])]])
async def test_noise_on_the_side_channel_is_passed_over(pair: MakePair, frames: list[bytes]) -> None:
    two = await pair()
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(f"tcp://127.0.0.1:{two.prefill.server.service.connectors[0].port}")  # type: ignore[attr-defined]
    await socket.send_multipart(frames)
    assert (await two.split(body()))["choices"]
    socket.close(linger=0)
    context.term()
