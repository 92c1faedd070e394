"""Covers: gateway/proxy/admin/debug.py, gateway/placement/decision.py, gateway/proxy/admin/explain.py,
gateway/proxy/admin/operations.py.

``/debug/decisions`` and ``/debug/explain`` of a gateway in front of simulated engines.
"""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from typing import Any

import httpx
import pytest

from gateway.core.tasks import TaskSet
from gateway.fleet.settings import EndpointSettings
from gateway.proxy.settings import ListenSettings
from gateway.scheduling.settings import PluginSettings, ProfileSettings, WeightedScorer
from gateway.tenants.settings import TenantSettings, TenantsSettings
from simulator.faults import FaultKind
from simulator.server import EngineServer
from tests.support.engines import engines
from tests.support.gateway import IN_TURN, PATIENT_FLEET, Running, config_for, running, split_config
from tests.support.wait import eventually

PATH = "/v1/chat/completions"
SECRET = "Palimpsest"
CHAT: dict[str, Any] = {
    "model": "sim",
    "messages": [{"role": "user", "content": f"{SECRET} " * 200}],
    "max_tokens": 3,
}
STREAMED: dict[str, Any] = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}


def name_of(server: EngineServer) -> str:
    return server.url.removeprefix("http://")


async def decisions(gateway: Running, **query: Any) -> list[dict[str, Any]]:
    reply = await gateway.client.get(f"{gateway.admin_url}/debug/decisions", params=query)
    assert reply.status_code == 200, reply.text
    assert SECRET not in reply.text
    return reply.json()["decisions"]


async def explained(gateway: Running, body: Any, expect: int = 200, **query: Any) -> dict[str, Any]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = await gateway.client.post(f"{gateway.admin_url}/debug/explain", content=content, params=query)
    assert reply.status_code == expect, reply.text
    assert SECRET not in reply.text
    return reply.json()


async def test_a_decision_tells_what_was_expected_and_what_came(tokenizer):
    async with engines(2, tokenizer=tokenizer) as servers:
        config = config_for(*(s.url for s in servers), tokenizer=tokenizer, fleet=PATIENT_FLEET)
        async with running(config) as gateway:
            assert await gateway.gateway.feed.synced(10)
            for number in range(2):
                reply = await gateway.client.post(PATH, json=STREAMED, headers={"x-request-id": f"ask-{number}"})
                assert reply.status_code == 200
            await eventually(lambda: len(gateway.lines) == 2, "both are settled")
            second, first = await decisions(gateway)
            assert [first["request_id"], second["request_id"]] == ["ask-0", "ask-1"]
            home = gateway.lines[0].endpoint
            assert first["plan"] == {"decode": home, "prefill": None, "reason": "single"}
            assert (first["model"], first["handler"], first["exact"], first["attempt"]) == ("sim", "default", True, 1)
            assert first["prompt_tokens"] == gateway.lines[0].prompt_tokens
            assert first["predicted"]["cached_tokens"] == first["real"]["cached_tokens"] == 0
            assert second["predicted"]["endpoint"] == home
            assert second["predicted"]["cached_tokens"] == second["real"]["cached_tokens"] > 0
            for decision, line in zip((first, second), gateway.lines, strict=True):
                assert decision["predicted"]["ttft"] > 0
                assert 0 < decision["real"]["ttft"] <= decision["outcome"]["ttft"] == line.ttft
                assert (decision["result"], decision["outcome"]["outcome"]) == ("ok", "ok")
                assert decision["outcome"]["cached_tokens"] == line.cached_tokens
            (profile,) = second["profiles"]
            assert (profile["profile"], profile["picked"], profile["scorers"]) == ("default", home, {"cost": 1.0})
            best, other = profile["candidates"]
            assert (best["endpoint"], best["expected_hit"]) == (home, second["predicted"]["cached_tokens"])
            assert best["match"]["gpu"] >= best["expected_hit"]
            assert best["score"] == best["scores"]["cost"] > other["score"] > 0


async def test_a_decision_without_an_end_has_no_outcome_yet():
    async with engines(1, step_seconds=0.02) as (server,):
        async with running(config_for(server.url, fleet=PATIENT_FLEET)) as gateway:
            asked = asyncio.create_task(gateway.client.post(PATH, json={**CHAT, "max_tokens": 50, "ignore_eos": True}))
            await eventually(lambda: len(gateway.gateway.decisions) == 1, "it is placed")
            (decision,) = await decisions(gateway)
            assert (decision["result"], decision["outcome"]) == (None, None)
            assert decision["exact"] is False
            await asked
            (decision,) = await decisions(gateway)
            assert decision["outcome"]["status"] == 200
            assert decision["real"]["ttft"] is None, "nothing tells when an unstreamed answer's first token came"


async def test_each_attempt_is_a_decision_and_says_how_it_ended():
    async with engines(2) as servers:
        async with running(config_for(*(s.url for s in servers), **IN_TURN, fleet=PATIENT_FLEET)) as gateway:
            servers[0].faults.inject(FaultKind.ADMISSION)
            reply = await gateway.client.post(PATH, json=CHAT, headers={"x-request-id": "again"})
            assert reply.status_code == 200
            await eventually(lambda: len(gateway.lines) == 1, "it is settled")
            second, first = await decisions(gateway, request_id="again")
            assert (first["attempt"], first["result"]) == (1, "status-503")
            assert first["plan"]["decode"] == name_of(servers[0])
            assert (first["outcome"], second["attempt"], second["result"]) == (None, 2, "ok")
            assert second["outcome"]["attempts"] == 2
            assert [c["endpoint"] for c in second["profiles"][0]["candidates"]] == [name_of(servers[1])]


async def test_what_could_not_be_placed_says_which_filter_removed_whom():
    async with engines(2) as servers:
        config = config_for(
            *(s.url for s in servers),
            plugins=(
                PluginSettings("healthy", "healthy"),
                PluginSettings("zone", "labels", {"match": {"zone": ["a"]}}),
                PluginSettings("best", "max-score"),
            ),
            profiles=(ProfileSettings(name="default", filters=("healthy", "zone"), picker="best"),),
        )
        async with running(config) as gateway:
            reply = await gateway.client.post(PATH, json=CHAT)
            assert reply.status_code == 503
            (decision,) = await decisions(gateway)
            assert decision["plan"] is None
            assert "'zone'" in decision["error"]
            assert decision["outcome"]["outcome"] == "no_endpoint"
            (profile,) = decision["profiles"]
            names = [name_of(server) for server in servers]
            assert profile["filters"] == [{"filter": "zone", "removed": names}]
            assert [(c["endpoint"], c["removed_by"]) for c in profile["candidates"]] == [(n, "zone") for n in names]
            account = await explained(gateway, CHAT)
            assert account["plan"] is None
            assert (account["error"]["message"], account["error"]["status"]) == (decision["error"], 503)


async def test_a_split_tells_both_legs(tokenizer):
    async with engines(2, tokenizer=tokenizer) as (prefill, decode):
        config = split_config([prefill.url], [decode.url], parameters={}, tokenizer=tokenizer, fleet=PATIENT_FLEET)
        async with running(config) as gateway:
            assert (await gateway.client.post(PATH, json=STREAMED)).status_code == 200
            await eventually(lambda: len(gateway.lines) == 1, "it is settled")
            (decision,) = await decisions(gateway, endpoint=name_of(prefill))
            plan = {"decode": name_of(decode), "prefill": name_of(prefill), "reason": "split"}
            assert decision["plan"] == plan | {"connector": "nixl", "strict": False}
            assert [profile["profile"] for profile in decision["profiles"]] == ["decode", "prefill"]
            assert decision["predicted"]["endpoint"] == name_of(prefill)
            assert decision["outcome"]["prefill_time"] > 0
            account = await explained(gateway, CHAT)
            new = {one["endpoint"]: one["new_tokens"] for one in account["endpoints"]}
            assert account["plan"] == decision["plan"] | {"new_tokens": new[name_of(decode)]}
            assert {one["role"] for one in account["endpoints"]} == {"prefill", "decode"}


async def test_a_hand_over_that_failed_is_told_of_who_computed_the_prompt(tokenizer):
    async with engines(2, tokenizer=tokenizer) as (prefill, decode):
        config = split_config([prefill.url], [decode.url], parameters={}, tokenizer=tokenizer, fleet=PATIENT_FLEET)
        async with running(config) as gateway:
            prefill.faults.inject(FaultKind.NO_PARAMS)
            assert (await gateway.client.post(PATH, json=STREAMED)).status_code == 200
            await eventually(lambda: len(gateway.lines) == 1, "it is settled")
            (decision,) = await decisions(gateway)
            assert decision["plan"]["prefill"] == name_of(prefill)
            assert decision["outcome"]["fallback"] == gateway.lines[0].fallback
            assert decision["predicted"]["endpoint"] == name_of(decode)
            assert decision["real"]["cached_tokens"] == decision["predicted"]["cached_tokens"] == 0
            assert 0 < decision["real"]["ttft"] < decision["outcome"]["ttft"]


async def test_decisions_are_chosen_by_request_model_endpoint_and_number():
    async with engines(1) as (server,):
        async with running(config_for(server.url, fleet=PATIENT_FLEET)) as gateway:
            for number in range(4):
                await gateway.client.post(PATH, json=CHAT, headers={"x-request-id": f"n{number % 2}"})
            assert [d["request_id"] for d in await decisions(gateway, limit=3)] == ["n1", "n0", "n1"]
            assert [d["request_id"] for d in await decisions(gateway, request_id="n0")] == ["n0", "n0"]
            assert len(await decisions(gateway, model="sim", endpoint=name_of(server))) == 4
            assert await decisions(gateway, model="other") == await decisions(gateway, endpoint="other") == []


@pytest.mark.parametrize(
    ("query", "param"), [({"limit": "0"}, "limit"), ({"limit": "1001"}, "limit"), ({"limit": "²"}, "limit"),
                         ({"limit": "x"}, "limit"), ({"limit": "000000001" + 30 * "9"}, "limit"), ({"id": "1"}, "id")],
)  # fmt: skip
async def test_a_wrong_choice_of_decisions_is_refused(query, param):
    async with engines(1) as (server,), running(config_for(server.url)) as gateway:
        reply = await gateway.client.get(f"{gateway.admin_url}/debug/decisions", params=query)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_a_body_that_cannot_be_unwrapped_is_refused():
    deep = '{"body": {"model": "sim", "prompt": "x", "x": ' + "[" * 300 + "]" * 300 + "}}"
    async with engines(1) as (server,), running(config_for(server.url)) as gateway:
        reply = await gateway.client.post(f"{gateway.admin_url}/debug/explain", content=deep)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "body")


async def test_an_explanation_is_what_then_happens_and_leaves_nothing_behind(tokenizer):
    async with engines(3, tokenizer=tokenizer) as servers:
        config = config_for(*(s.url for s in servers), tokenizer=tokenizer, fleet=PATIENT_FLEET)
        async with running(config) as gateway:
            assert await gateway.gateway.feed.synced(10)
            await gateway.client.post(PATH, json=CHAT)
            await eventually(lambda: len(gateway.lines) == 1, "it is settled")
            await gateway.heard(*servers)  # else its blocks are still predicted
            account = await explained(gateway, CHAT)
            assert gateway.idle()
            assert len(gateway.gateway.decisions) == 1
            home = gateway.lines[0].endpoint
            assert account["plan"]["decode"] == home
            assert (account["exact"], account["prompt_tokens"]) == (True, gateway.lines[0].prompt_tokens)
            told = {one["endpoint"]: one for one in account["endpoints"]}
            assert set(told) == {name_of(server) for server in servers}
            assert told[home]["match"]["source"] == "events"
            assert (told[home]["match"]["believed"], told[home]["match"]["event_stream"]) == ("events", "live")
            assert told[home]["match"]["event_age"] >= 0
            assert told[home]["expected_hit"] + told[home]["new_tokens"] == account["prompt_tokens"]
            assert told[home]["ledger"] == dict.fromkeys(told[home]["ledger"], 0)
            assert told[home]["cost"]["ttft"] > 0
            assert set(told[home]["cost"]["scalars"]) >= {"prefill_token", "step", "overhead"}
            (profile,) = account["profiles"]
            for candidate in profile["candidates"]:
                seconds = sum(candidate["terms"]["cost"].values())
                assert candidate["scores"]["cost"] == pytest.approx(1 / (1 + seconds))
            await gateway.client.post(PATH, json=CHAT)
            assert gateway.lines[-1].endpoint == home
            assert gateway.lines[-1].expected_hit == told[home]["expected_hit"] == gateway.lines[-1].cached_tokens
            predicted = (await decisions(gateway, limit=1))[0]["predicted"]
            assert predicted["ttft"] == pytest.approx(told[home]["cost"]["ttft"]), "it does not wait for itself"


async def test_an_explanation_takes_nobodys_turn():
    async with engines(3) as servers:
        async with running(config_for(*(s.url for s in servers), **IN_TURN, fleet=PATIENT_FLEET)) as gateway:
            for server in servers:
                for _ in range(2):
                    assert (await explained(gateway, CHAT))["plan"]["decode"] == name_of(server)
                await gateway.client.post(PATH, json=CHAT)
                assert gateway.lines[-1].endpoint == name_of(server)


async def test_an_explanation_foresees_the_next_draw():
    wiring = {
        "plugins": (PluginSettings("healthy", "healthy"), PluginSettings("any", "random")),
        "profiles": (ProfileSettings(name="default", filters=("healthy",), picker="any"),),
    }
    async with engines(3) as servers:
        async with running(config_for(*(s.url for s in servers), **wiring, fleet=PATIENT_FLEET)) as gateway:
            for _ in range(6):
                foreseen = (await explained(gateway, CHAT))["plan"]["decode"]
                await gateway.client.post(PATH, json=CHAT)
                assert gateway.lines[-1].endpoint == foreseen


async def test_an_explanation_sees_the_ledger_as_it_is():
    async with engines(1, step_seconds=0.02) as (server,):
        async with running(config_for(server.url, fleet=PATIENT_FLEET)) as gateway:
            body = {**STREAMED, "max_tokens": 100, "ignore_eos": True}
            async with gateway.client.stream("POST", PATH, json=body) as reply:
                lines = reply.aiter_lines()
                await anext(lines)
                (one,) = (await explained(gateway, CHAT))["endpoints"]
                assert one["ledger"]["requests"] == 1
                assert one["ledger"]["kv_tokens"] > 0


async def test_an_explanation_tells_who_is_left_out():
    async with engines(2) as servers:
        config = config_for(
            endpoints=(EndpointSettings(url=servers[0].url, drain=True), EndpointSettings(url=servers[1].url))
        )
        async with running(config) as gateway:
            account = await explained(gateway, CHAT)
            assert account["left_out"] == [{"endpoint": name_of(servers[0]), "why": "draining"}]
            assert account["plan"]["decode"] == name_of(servers[1])


async def test_a_scorer_that_fails_is_named_and_not_quoted():
    config_of = {
        "plugins": (PluginSettings("best", "max-score"), PluginSettings("cost", "placement-cost")),
        "profiles": (ProfileSettings(name="default", scorers=(WeightedScorer("cost", 2.0),), picker="best"),),
    }
    async with engines(1) as (server,):
        async with running(config_for(server.url, **config_of)) as gateway:
            (_, plugin, _) = gateway.gateway.scheduler.profiles["default"].scorers[0]

            def fails(request: object, endpoints: object) -> list[float]:
                raise RuntimeError(SECRET)

            plugin.score = fails
            assert (await gateway.client.post(PATH, json=CHAT)).status_code == 200
            (decision,) = await decisions(gateway)
            assert decision["profiles"][0]["failed_scorers"] == {"cost": "RuntimeError"}
            account = await explained(gateway, CHAT)
            assert account["profiles"][0]["failed_scorers"] == {"cost": "RuntimeError"}
            assert "terms" not in account["profiles"][0]["candidates"][0]


@pytest.mark.parametrize(
    ("body", "query"),
    [
        (CHAT, {}),
        (CHAT, {"path": PATH}),
        ({"body": CHAT}, {}),
        ({"path": PATH, "model": "sim", "body": CHAT | {"model": "other"}}, {}),
        ({"prompt": "Hello"}, {}),
        ({"model": "sim", "input": "Hello"}, {"path": "/v1/embeddings"}),
        ({"path": "/v1/responses", "body": {"input": "Hello"}}, {}),
        ({"max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}, {"path": "/v1/messages"}),
    ],
)
async def test_what_may_be_asked(body, query):
    async with engines(1) as (server,), running(config_for(server.url)) as gateway:
        assert (await explained(gateway, body, **query))["plan"]["decode"] == name_of(server)


@pytest.mark.parametrize(
    ("body", "query", "status", "said"),
    [
        (f'{{"messages": "{SECRET}'.encode(), {}, 400, "not JSON"),
        (f'{{"messages": "{SECRET}'.encode(), {"path": PATH}, 400, "JSON"),
        ([1], {}, 400, "object"),
        ({"input": SECRET}, {}, 400, "path"),
        ({"path": 5, "body": {"input": SECRET}}, {}, 400, "path"),
        ({"body": CHAT, "metadata": 1}, {}, 400, "Beside body"),
        (CHAT, {"path": "/v1/load_lora_adapter"}, 400, "none of the paths"),
        ({**CHAT, "model": "none"}, {}, 404, "does not exist"),
        ({"messages": 3}, {}, 400, "messages"),
        (b"x" * 5000, {"path": PATH}, 413, "4000"),
    ],
)
async def test_what_cannot_be_understood_is_refused(body, query, status, said):
    config = config_for("http://127.0.0.1:1", listen=ListenSettings(max_body=4000))
    async with running(config) as gateway:
        account = await explained(gateway, body, expect=status, **query)
        assert said in account["error"]["message"]


async def test_clients_cannot_reach_it_and_web_pages_may_not_ask():
    async with engines(1) as (server,), running(config_for(server.url)) as gateway:
        assert (await gateway.client.get("/debug/decisions")).status_code == 404
        assert (await gateway.client.post("/debug/explain", json=CHAT)).status_code == 404
        page = {"Origin": "http://evil.example"}
        reply = await gateway.client.post(f"{gateway.admin_url}/debug/explain", json=CHAT, headers=page)
        assert reply.status_code == 403


async def test_headers_count_as_they_do_for_clients():
    async with engines(1) as (server,), running(config_for(server.url)) as gateway:
        headers = {"x-slo-ttft-ms": "250", "x-session-id": "s1", "authorization": "Bearer sk-1"}
        reply = await gateway.client.post(f"{gateway.admin_url}/debug/explain", json=CHAT, headers=headers)
        assert (reply.json()["slo"], reply.json()["session"]) == ({"ttft": 0.25, "tpot": None}, "s1")
        reply = await gateway.client.post(
            f"{gateway.admin_url}/debug/explain", json=CHAT, headers={"x-slo-ttft-ms": "soon"}
        )
        assert reply.status_code == 400


async def test_a_request_may_be_anybody_s():
    """By the query, else by the tenants' header, which an operator may set even where no client is believed."""
    red = TenantSettings("red", bands=(-1, 2), models=("sim",))
    tenants = TenantsSettings(header="x-team", tenants=(red, TenantSettings("blue", models=())), file="none")
    async with engines(1) as (server,), running(config_for(server.url)) as gateway:
        sources = gateway.gateway.rooms.sources
        sources.adopt(tenants, (), None)

        async def ask(query: str = "", **headers: str):
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return await gateway.client.post(f"{gateway.admin_url}/debug/explain{query}", json=CHAT, headers=named)

        for reply, who in (
            (await ask(), ("default", 0)),
            (await ask("?tenant=red", x_kvgate_priority="1"), ("red", 1)),
            (await ask(x_team="red"), ("red", 0)),
            (await ask("?tenant=green", x_team="red"), ("green", 0)),
        ):
            assert (reply.json()["tenant"], reply.json()["band"]) == who
        assert (await ask("?tenant=blue")).status_code == 404
        assert len(sources.directory.named) == 0, "who asks about a tenant does not use it"


async def test_a_reload_waits_for_who_asks_before_it_gives_the_tokenizer_back(tokenizer):
    body = {**CHAT, "messages": [{"role": "user", "content": f"{SECRET} " * 20_000}]}
    async with engines(1, tokenizer=tokenizer) as servers:
        config = config_for(servers[0].url, tokenizer=tokenizer)
        async with running(config) as gateway:
            (before,) = gateway.gateway.directory.runtimes
            threads, gate, tasks = before.tokens._threads, threading.Event(), TaskSet()
            for number in range(threads._free):
                tasks.start(threads.run("other", 1, lambda: gate.wait(30)), name=f"hold {number}")
            await eventually(lambda: not threads._free, "all threads are held")
            asks = tasks.start(explained(gateway, body), name="ask")
            await eventually(lambda: threads.waiting == 1, "the question waits for one")
            assert (
                await gateway.reload(replace(config, models=(replace(config.models[0], tokenizer=None),)))
            ).is_success
            assert not threads.closed
            gate.set()
            account = await asks
            assert (account["exact"], account["estimated"], account["error"]) == (True, None, None)
            await eventually(lambda: threads.closed, "its threads end")
            assert (await explained(gateway, CHAT))["estimated"] == "no-tokenizer"
            await tasks.close()


async def test_a_reload_keeps_past_decisions_and_explains_by_what_is_in_force():
    async with engines(2) as servers:
        config = config_for(*(s.url for s in servers), fleet=PATIENT_FLEET)
        async with running(config) as gateway:
            await gateway.client.post(PATH, json=CHAT)
            wanted = replace(config, models=(replace(config.models[0], endpoints=config.models[0].endpoints[1:]),))
            assert isinstance(await gateway.reload(wanted), httpx.Response)
            account = await explained(gateway, CHAT)
            assert [one["endpoint"] for one in account["endpoints"]] == [name_of(servers[1])]
            (decision,) = await decisions(gateway)
            assert len(decision["profiles"][0]["candidates"]) == 2


async def test_what_the_handler_compared_is_told():
    async with engines(2) as servers:
        async with running(config_for(*(s.url for s in servers), fleet=PATIENT_FLEET)) as gateway:
            handler = gateway.gateway.scheduler.handlers["default"]
            plan = handler.plan
            handler.plan = lambda *arguments: replace(plan(*arguments), costs={"alone": 0.2, "split": 0.3})
            await gateway.client.post(PATH, json=CHAT)
            assert (await decisions(gateway))[0]["plan"]["costs"] == {"alone": 0.2, "split": 0.3}
