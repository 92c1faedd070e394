"""Another configuration without a restart: what it changes, what it leaves, and that no request notices."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import httpx
import orjson
import pytest

from gateway.config.settings import Config, ModelSettings
from gateway.errors import ConfigError
from gateway.fleet.settings import CostSettings, EndpointSettings
from gateway.flow.settings import FlowSettings
from gateway.proxy.settings import KeySettings, ListenSettings, TimeoutSettings
from gateway.scheduling.settings import HandlerSettings, PluginSettings, ProfileSettings, WeightedScorer
from tests.support.chat import chat
from tests.support.engines import engines
from tests.support.examples import slowly
from tests.support.fleet import engines_of
from tests.support.gateway import IN_TURN, PATIENT_FLEET, QUICK_FLEET, Running, config_for, running
from tests.support.wait import eventually

PATH = "/v1/chat/completions"


def model(name: str, *urls: str, **changes: Any) -> ModelSettings:
    return ModelSettings(name=name, endpoints=tuple(EndpointSettings(url=url) for url in urls), **changes)


def with_endpoints(config: Config, *endpoints: EndpointSettings) -> Config:
    return replace(config, models=(replace(config.models[0], endpoints=endpoints),))


async def ask(gateway: Running, body: dict[str, Any] | None = None, **options: Any) -> httpx.Response:
    return await gateway.client.post(PATH, json=body or chat(), **options)


async def changed(gateway: Running, wanted: Config) -> dict[str, list[str]]:
    reply = await gateway.reload(wanted)
    assert reply.status_code == 200, reply.text
    told: dict[str, list[str]] = reply.json()
    return told


def slots(gateway: Running) -> dict[str, int]:
    return {
        e.name: e.slot for s in gateway.gateway.directory.runtimes for e in gateway.gateway.fleet.endpoints(s.model)
    }


@pytest.mark.parametrize("reloads", [3, *slowly(20)])
async def test_no_request_is_lost_while_everything_changes_all_the_time(tokenizer, reloads):
    """64 requests at a time, and reloads: weights, plugins, handlers, endpoints that come and go, the tokenizer."""
    async with engines(4, tokenizer=tokenizer, step_seconds=0.001) as servers:
        urls = [server.url for server in servers]

        def wanted(number: int) -> Config:
            here = [urls[(number + shift) % 4] for shift in range(1 + number % 3)]
            profile = ProfileSettings(
                name="default", filters=("healthy",), scorers=(WeightedScorer("cost", 1.0 + number),), picker="best"
            )
            plugins = (
                PluginSettings("healthy", "healthy"),
                PluginSettings("cost", "placement-cost", {"lam": 0.1 + number % 2}),
                PluginSettings("best", "max-score"),
            )
            name = f"h{number % 2}"
            return config_for(
                *here,
                fleet=PATIENT_FLEET,
                tokenizer=tokenizer if number % 5 else None,
                handler=name,
                plugins=plugins,
                profiles=(profile,),
                handlers=(HandlerSettings(name, "single", {"profile": "default"}),),
                limits=FlowSettings(max_in_flight=16 + number),
            )

        async with running(wanted(0)) as gateway:
            statuses: list[int] = []
            stop = asyncio.Event()

            async def visit(number: int) -> None:
                chance = random.Random(number)
                while not stop.is_set():
                    stream = chance.random() < 0.5
                    reply = await ask(gateway, chat(chance.randrange(10), stream=stream, max_tokens=8))
                    assert not stream or reply.text.rstrip().endswith("data: [DONE]"), reply.text
                    statuses.append(reply.status_code)

            visits = [asyncio.get_running_loop().create_task(visit(number)) for number in range(64)]
            for number in range(1, reloads + 1):
                done = len(statuses)
                await changed(gateway, wanted(number))
                await eventually(lambda done=done: len(statuses) >= done + 16, "requests go on", within=60)
            stop.set()
            await asyncio.gather(*visits)
            assert set(statuses) == {200}
            await eventually(gateway.idle, "every permit and reservation is given back")
            await eventually(lambda: not gateway.gateway.reloading._ending, "no wiring of before is left")
            assert {
                e["state"] for e in (await gateway.client.get(f"{gateway.admin_url}/endpoints")).json()["endpoints"]
            } == {"up"}
            for server in servers:
                assert server.running == server.waiting == 0


async def test_what_does_not_change_stays_as_it_is(tokenizer):
    async with engines(3, tokenizer=tokenizer) as servers:
        config = config_for(servers[0].url, servers[1].url, tokenizer=tokenizer)
        async with running(config) as gateway:
            assert await gateway.gateway.feed.synced(10)
            for group in range(6):
                await ask(gateway, chat(group))
            (runtime,) = gateway.gateway.directory.runtimes
            fleet, feed = gateway.gateway.fleet, gateway.gateway.feed
            before = list(fleet.endpoints(runtime.model))
            streams = dict(feed._streams)
            costs, watches = [e.cost for e in before], [fleet._registry.watches[e.engine]._task for e in before]
            told = await changed(
                gateway, with_endpoints(config, *(EndpointSettings(url=server.url) for server in servers))
            )
            assert told == {"changes": [f"models[sim].endpoints[{servers[2].url}] added"], "restart": []}
            (after,) = gateway.gateway.directory.runtimes
            endpoints = fleet.endpoints(after.model)
            assert (after.tokens, after.index, after.admission) == (runtime.tokens, runtime.index, runtime.admission)
            assert list(endpoints[:2]) == before
            assert [e.cost for e in endpoints[:2]] == costs
            assert [fleet._registry.watches[e.engine]._task for e in endpoints[:2]] == watches
            assert {e: feed._streams[e] for e in before} == streams
            assert endpoints[2].engine.up, "it was looked at before the swap"
            for group in range(6):
                await ask(gateway, chat(group))
                assert gateway.lines[-1].expected_hit == gateway.lines[-1].cached_tokens > 0


async def test_starting_costs_change_per_endpoint_model_and_fleet(tokenizer):
    """Those whose own are the same keep what was learned."""
    async with engines(2, tokenizer=tokenizer) as servers:
        config = config_for(*(server.url for server in servers), tokenizer=tokenizer)
        one, other = config.models[0].endpoints
        small, slow = CostSettings(profile="8b-h100"), CostSettings(step_tokens=100)
        config = replace(config, models=(replace(config.models[0], endpoints=(replace(one, cost=small), other)),))
        async with running(config) as gateway:
            (runtime,) = gateway.gateway.directory.runtimes
            first, second = (gateway.gateway.fleet.cost(e) for e in gateway.gateway.fleet.endpoints(runtime.model))
            assert (first.scalars.step, second.scalars.step) == (8.4e-3, 21e-3)
            first.learn_step(1, 1, 1.0, at=0.0)
            assert first.step_scale > 5
            told = await changed(gateway, replace(config, fleet=replace(config.fleet, cost=slow)))
            assert told == {"changes": ["fleet.cost.step_tokens"], "restart": []}
            assert second.scalars.step_tokens == 100
            assert first.start.step == 8.4e-3
            assert first.step_scale > 1, "its own were not changed"
            await changed(
                gateway, replace(config, models=(replace(config.models[0], cost=CostSettings(step_tokens=200)),))
            )
            assert (first.start.step, second.start.step_tokens) == (8.4e-3, 200)


@pytest.mark.parametrize("wrong", ["file", "plugin", "tokenizer", "new tokenizer", "name", "keys"])
async def test_what_is_wrong_changes_nothing_and_says_why(tokenizer, tmp_path, wrong):
    async with engines(2, tokenizer=tokenizer) as servers:
        config = config_for(servers[0].url, tokenizer=tokenizer, **IN_TURN)
        other = EndpointSettings(url=servers[1].url)
        bad: dict[str, tuple[Config | Exception, str]] = {
            "file": (ConfigError("plugins.yaml:3: models: no"), "plugins.yaml:3: models: no"),
            "plugin": (replace(config, plugins=(PluginSettings("turn", "nonsense"),)), "no plugin 'nonsense'"),
            "tokenizer": (replace(config, models=(replace(config.models[0], tokenizer=str(tmp_path)),)), str(tmp_path)),
            "name": (
                with_endpoints(config, replace(other, name="a"), EndpointSettings("http://h", name="a")),
                "name a",
            ),
            "new tokenizer": (
                replace(config, models=(*config.models, model("new", servers[1].url, tokenizer=str(tmp_path)))),
                "models[1]: model new: tokenizer",
            ),
            "keys": (replace(config, client_keys=KeySettings(file=str(tmp_path / "none"))), "cannot be read"),
        }
        async with running(config) as gateway:
            wiring, before = gateway.gateway.reloading.wiring, slots(gateway)
            reply = await gateway.reload(bad[wrong][0])
            assert reply.status_code == 400
            assert bad[wrong][1] in reply.json()["error"]["message"]
            assert gateway.gateway.reloading.wiring is wiring
            assert slots(gateway) == before
            assert len(engines_of(gateway.gateway.fleet)) == 1
            assert list(gateway.gateway.feed._indexes) == ["sim"]
            assert (await ask(gateway)).status_code == 200
            text = await gateway.metrics()
            assert 'kvgate_token_parity{model="sim"} 1.0' in text
            assert 'model="new"' not in text
            assert f'engine="{servers[1].url.removeprefix("http://")}"' not in text
            told = await changed(gateway, with_endpoints(config, *config.models[0].endpoints, other))
            assert len(told["changes"]) == 1
            assert {(await ask(gateway)).status_code for _ in range(4)} == {200}


async def test_a_model_that_is_gone_is_not_found_and_its_running_answers_end(tokenizer):
    async with engines(2, tokenizer=tokenizer, step_seconds=0.01) as servers:
        keep = model("kept", servers[1].url, served_name="sim")
        config = replace(config_for(servers[0].url, tokenizer=tokenizer), models=(model("sim", servers[0].url), keep))
        config = replace(config, models=(replace(config.models[0], tokenizer=tokenizer), keep))
        async with running(config) as gateway:
            gone = gateway.gateway.directory.runtimes[0]
            (endpoint,) = gateway.gateway.fleet.endpoints(gone.model)
            long = chat(stream=True, max_tokens=60, ignore_eos=True)
            async with gateway.client.stream("POST", PATH, json=long) as answer:
                events = answer.aiter_lines()
                await anext(events)
                assert (await changed(gateway, replace(config, models=(keep,))))["changes"] == ["models[sim] removed"]
                assert (await ask(gateway)).status_code == 404
                listed = [e["id"] for e in (await gateway.client.get("/v1/models")).json()["data"]]
                assert listed == ["kept"]
                shown = (await gateway.client.get(f"{gateway.admin_url}/endpoints")).json()["endpoints"]
                assert [(e["name"], e["state"], e["running"]) for e in shown if e["model"] == "sim"] == [
                    (endpoint.name, "removed", 1)
                ]
                assert not gone.tokens._threads.closed
                rest = [line async for line in events]
            assert rest[-2:] == ["data: [DONE]", ""]
            assert gateway.lines[-1].outcome == "ok"
            assert endpoint.load.requests == endpoint.load.kv_tokens == 0
            await eventually(lambda: gone.tokens._threads.closed, "its tokenizer's threads end")
            await eventually(lambda: gone.index.blocks == 0 and gone.index.sweep(0), "its index is cleared")
            assert 'model="sim"' not in await gateway.metrics()
            shown = (await gateway.client.get(f"{gateway.admin_url}/endpoints")).json()["endpoints"]
            assert [e["model"] for e in shown] == ["kept"]
            assert (await ask(gateway, chat(model="kept"))).status_code == 200
            await changed(gateway, config)
            assert (await ask(gateway)).status_code == 200
            assert slots(gateway)[endpoint.name] == endpoint.slot, "its slot is used again"


async def test_a_request_that_began_before_its_model_went_is_still_placed(tokenizer):
    """It waits for admission, and keeps the wiring with which it began: handler, plugins, endpoints."""
    async with engines(2, step_seconds=0.01) as servers:
        limits = FlowSettings(max_in_flight=1)
        config = config_for(servers[0].url, limits=limits)
        async with running(config) as gateway:
            first = asyncio.get_running_loop().create_task(ask(gateway, chat(max_tokens=40, ignore_eos=True)))
            admission = gateway.gateway.directory.runtimes[0].admission
            await eventually(lambda: admission.in_flight == 1, "one is under way")
            second = asyncio.get_running_loop().create_task(ask(gateway))
            await eventually(lambda: admission.waiting == 1, "one waits")
            await changed(gateway, replace(config, models=(model("other", servers[1].url, served_name="sim"),)))
            await changed(gateway, replace(config, models=(model("third", servers[1].url, served_name="sim"),)))
            assert [(await one).status_code for one in (first, second)] == [200, 200]
            assert gateway.lines[-1].endpoint == servers[0].url.removeprefix("http://")


async def test_all_engines_are_replaced_at_once_and_none_is_missed():
    """The new ones are known to be up before the old ones go."""
    async with engines(2) as servers:
        config = config_for(servers[0].url)
        async with running(config) as gateway:
            for number in range(6):
                await changed(gateway, config_for(servers[(number + 1) % 2].url))
                assert (await ask(gateway)).status_code == 200
                assert gateway.lines[-1].endpoint == servers[(number + 1) % 2].url.removeprefix("http://")


async def test_a_name_may_move_to_another_url_and_an_engine_get_another_name():
    async with engines(2) as servers:
        one, other = (server.url for server in servers)
        config = config_for(endpoints=(EndpointSettings(one, name="a"), EndpointSettings(other, name="b")))
        async with running(config) as gateway:
            swapped = with_endpoints(config, EndpointSettings(one, name="b"), EndpointSettings(other, name="a"))
            await changed(gateway, swapped)
            endpoints = gateway.gateway.fleet.all_endpoints
            assert {(e.name, e.engine.url, e.engine.name) for e in endpoints} == {("b", one, "b"), ("a", other, "a")}
            text = await gateway.metrics()
            assert 'kvgate_engine_up{engine="a"} 1.0' in text
            assert 'kvgate_engine_up{engine="b"} 1.0' in text
            assert {(await ask(gateway)).status_code for _ in range(4)} == {200}
            pinned = with_endpoints(config, EndpointSettings(one, name="b", ranks=2), EndpointSettings(other, name="a"))
            await changed(gateway, pinned)
            assert {e.name for e in gateway.gateway.fleet.all_endpoints} == {"b/0", "b/1", "a"}


async def test_an_endpoint_that_goes_on_is_told_what_is_new_of_it():
    async with engines(1, api_key="first") as (server,):
        one = EndpointSettings(server.url, api_key="first")
        config = config_for(endpoints=(one,))
        async with running(config) as gateway:
            (endpoint,) = gateway.gateway.fleet.all_endpoints
            await eventually(lambda: endpoint in gateway.gateway.feed._streams, "its events are followed")
            new = replace(
                one,
                api_key="second",
                role="decode",
                labels={"zone": "a"},
                kv_events=replace(one.kv_events, enabled=False),
            )
            told = await changed(gateway, with_endpoints(config, new))
            assert told["changes"] == [
                f"models[sim].endpoints[{server.url}].{key}"
                for key in ("role", "labels", "api_key", "kv_events.enabled")
            ]
            assert gateway.gateway.fleet.all_endpoints == [endpoint]
            assert (endpoint.role, endpoint.labels) == ("decode", {"zone": "a"})
            assert endpoint.api_key == "second"
            await eventually(lambda: endpoint not in gateway.gateway.feed._streams, "its events are not followed")
            assert "second" not in orjson.dumps(told).decode()


async def test_keys_timeouts_limits_and_what_passes_change_and_what_cannot_is_told():
    async with engines(1) as (server,):
        config = config_for(server.url)
        async with running(config) as gateway:
            wanted = replace(
                config,
                listen=ListenSettings(port=9, admin="127.0.0.1:9", max_body=5000),
                client_keys=KeySettings(values=("secret-key",)),
                timeouts=TimeoutSettings(head=20.0),
                fleet=replace(QUICK_FLEET, scrape=replace(QUICK_FLEET.scrape, interval=9.0)),
            )
            told = await changed(gateway, wanted)
            assert told == {
                "changes": ["listen.max_body", "timeouts.head", "client_keys.values"],
                "restart": ["listen.port", "listen.admin", "fleet.scrape.interval"],
            }
            assert (await ask(gateway)).status_code == 401
            key = {"authorization": "Bearer secret-key"}
            assert (await ask(gateway, headers=key)).status_code == 200
            assert (await ask(gateway, chat(padding="x" * 5000), headers=key)).status_code == 413
            # Only now, where an engine that answers late is no fault of the test.
            wanted = replace(wanted, timeouts=TimeoutSettings(head=0.05))
            assert (await changed(gateway, wanted))["changes"] == ["timeouts.head"]
            server.faults.inject("hang", path=PATH)
            assert (await ask(gateway, headers=key)).status_code == 504
            assert (await changed(gateway, wanted))["changes"] == []


async def test_plugins_that_stay_remember_and_requests_settle_where_they_were_placed():
    async with engines(2, step_seconds=0.01) as servers:
        config = config_for(*(server.url for server in servers), **IN_TURN)
        async with running(config) as gateway:
            old = gateway.gateway.scheduler
            turn = old.profiles["default"].picker[1]
            settled: list[str] = []
            old.on_settled = (("picker", "turn", lambda request, plan, outcome: settled.append(outcome.outcome)),)
            running_one = asyncio.get_running_loop().create_task(ask(gateway, chat(max_tokens=40, ignore_eos=True)))
            await eventually(lambda: servers[0].running + servers[1].running == 1, "it runs")
            labels = PluginSettings("near", "labels", {"match": {"zone": "a"}, "prefer": True})
            profile = ProfileSettings(name="default", filters=("healthy", "near"), picker="turn")
            await changed(gateway, replace(config, plugins=(*config.plugins, labels), profiles=(profile,)))
            new = gateway.gateway.scheduler
            assert new is not old
            assert new.profiles["default"].picker[1] is turn, "round robin goes on where it was"
            assert (await ask(gateway)).status_code == 200
            assert settled == []
            assert (await running_one).status_code == 200
            assert settled == ["ok"]


async def test_long_chats_are_known_as_before():
    async with engines(1) as servers:
        config = config_for(servers[0].url)
        async with running(config) as gateway:
            chats = gateway.gateway.rooms.chats
            turns = [{"role": "system", "content": "x" * 20_000}, {"role": "user", "content": "hello"}]
            assert (await ask(gateway, {"model": "sim", "messages": turns, "max_tokens": 1})).status_code == 200
            size = chats.size
            assert size > 40_000
            assert (await changed(gateway, replace(config, timeouts=TimeoutSettings(idle=77))))["changes"]
            more = [*turns, {"role": "assistant", "content": "y" * 8000}, {"role": "user", "content": "and?"}]
            assert (await ask(gateway, {"model": "sim", "messages": more, "max_tokens": 1})).status_code == 200
            assert size + 16_000 < chats.size < size + 20_000, "what is new is added to what was known before"


async def test_one_that_is_broken_off_has_changed_nothing():
    async with engines(2) as servers:
        config = config_for(servers[0].url)
        async with running(config) as gateway:
            wiring, before = gateway.gateway.reloading.wiring, slots(gateway)
            servers[1].faults.inject("hang", path="/metrics", times=None)
            gateway.wanted = replace(
                with_endpoints(config, *(EndpointSettings(server.url) for server in servers)),
                models=(
                    model("sim", *(server.url for server in servers)),
                    model("new", servers[1].url, served_name="sim"),
                ),
            )
            reloading = asyncio.get_running_loop().create_task(gateway.gateway.reloading.reload())
            await eventually(lambda: len(engines_of(gateway.gateway.fleet)) == 2, "the new engine is looked at")
            assert (await ask(gateway)).status_code == 200
            shown = (await gateway.client.get(f"{gateway.admin_url}/endpoints")).json()["endpoints"]
            assert [e["state"] for e in shown] == ["up", "coming", "coming"]
            reloading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reloading
            assert gateway.gateway.reloading.wiring is wiring
            assert slots(gateway) == before
            assert list(gateway.gateway.feed._indexes) == ["sim"]
            assert (await ask(gateway, chat(model="new"))).status_code == 404
            servers[1].faults.clear()
            await changed(gateway, gateway.read())
            assert (await ask(gateway, chat(model="new"))).status_code == 200


async def test_several_at_once_come_one_after_the_other():
    async with engines(3) as servers:
        config = config_for(servers[0].url)
        async with running(config) as gateway:
            wanted = [config_for(*(server.url for server in servers[: 1 + number % 3])) for number in range(7)]
            read = iter(wanted)
            gateway.gateway.reloading._read = lambda: next(read)
            replies = await asyncio.gather(*(gateway.reload() for _ in wanted))
            assert [reply.status_code for reply in replies] == [200] * 7
            assert len(gateway.gateway.fleet.all_endpoints) == 1 + 6 % 3
            assert gateway.gateway.config.models == wanted[-1].models


async def test_signals_are_gathered():
    async with engines(1) as (server,):
        config = config_for(server.url)
        async with running(config) as gateway:
            operations = gateway.gateway.operations
            for _ in range(10):
                operations.hang_up()
            assert len(operations._tasks) == 2
            await eventually(lambda: not len(operations._tasks), "both are done")
            gateway.wanted = ConfigError("no")
            operations.hang_up()
            await eventually(lambda: not len(operations._tasks), "it failed quietly")
            assert (await ask(gateway)).status_code == 200


async def test_a_page_in_an_operators_browser_may_not():
    async with engines(1) as (server,):
        async with running(config_for(server.url)) as gateway:
            origin = {"origin": "http://elsewhere"}
            name = server.url.removeprefix("http://")
            for method, path in (("POST", "/reload"), ("POST", f"/endpoints/{name}/drain")):
                reply = await gateway.client.request(method, f"{gateway.admin_url}{path}", headers=origin)
                assert reply.status_code == 403
            assert not gateway.gateway.fleet.all_endpoints[0].draining
