"""Covers: gateway/scaling.py, gateway/observability/scaling_families.py, gateway/core/scaling_view.py.

What autoscalers are told of a model, by a whole gateway in front of simulated engines."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace

import pytest

from gateway.api.settings import SloSettings
from gateway.fleet.load.wanted import Wanted
from gateway.fleet.settings import EndpointSettings
from gateway.flow.settings import FlowSettings, QueueSettings
from gateway.scaling import Scaling
from tests.support.engines import engines, simulated
from tests.support.gateway import Running, config_for, running
from tests.support.ports import free_in_a_row
from tests.support.wait import eventually, until

PATH = "/v1/chat/completions"
ASKED = {"model": "sim", "messages": [{"role": "user", "content": "some words " * 40}], "max_tokens": 8}
SLO = SloSettings(ttft_ms=2000, tpot_ms=50)


async def series(gateway: Running) -> dict[str, float]:
    """By name and labels, those of the page that autoscalers read."""
    found = {}
    for line in (await gateway.metrics()).splitlines():
        if re.match(r"kvgate_(waiting|predicted|usable|queued_prefill|kv_pressure|busy|wanted)|llm_d|inference_", line):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found


@pytest.mark.parametrize("queue", [None, QueueSettings()], ids=["no queue", "queue"])
async def test_every_series_is_there_from_the_start_at_0(queue):
    async with simulated() as engine, running(config_for(engine.url, queue=queue)) as gateway:
        found = await series(gateway)
        ours = {name: value for name, value in found.items() if not name.startswith("kvgate_usable")}
        assert set(ours.values()) == {0.0}
        labels = 'fairness_id="",inference_pool="sim",model_name="sim",priority="0",target_model_name="sim"'
        assert f"llm_d_epp_flow_control_queue_size{{{labels}}}" in ours
        assert f"inference_extension_flow_control_queue_size{{{labels}}}" in ours
        assert 'llm_d_epp_request_running{model_name="sim",target_model_name="sim"}' in ours
        assert 'llm_d_epp_flow_control_pool_saturation{inference_pool="sim"}' in ours
        assert 'kvgate_wanted_engines{model="sim",role="both"}' in ours
        assert found['kvgate_usable_endpoints{model="sim",role="both"}'] == 1


async def test_what_runs_and_what_is_wanted_is_shown():
    async with engines(2, step_seconds=0.02) as servers:
        async with running(config_for(*(server.url for server in servers), slo=SLO)) as gateway:
            sent = [asyncio.create_task(gateway.client.post(PATH, json=ASKED)) for _ in range(8)]

            async def runs() -> bool:
                found = await series(gateway)
                return found['llm_d_epp_request_running{model_name="sim",target_model_name="sim"}'] == 8

            await until(runs, within=30)
            found = await series(gateway)
            assert found['kvgate_kv_pressure_ratio{model="sim",role="both"}'] > 0
            assert found['kvgate_busy_engines{model="sim",role="both"}'] > 0
            assert found['kvgate_wanted_engines{model="sim",role="both"}'] >= 1
            assert found['kvgate_predicted_ttft_seconds{model="sim"}'] > 0
            await asyncio.gather(*sent)
            await eventually(gateway.idle, within=30)

            async def rests() -> bool:  # what is not ours fades with the scrapes
                return (await series(gateway))['kvgate_kv_pressure_ratio{model="sim",role="both"}'] < 1e-4

            await until(rests, within=30)


async def test_who_waits_for_an_engine_makes_one_wanted():
    limits = FlowSettings(no_endpoint_timeout=300.0)
    async with running(config_for(f"http://127.0.0.1:{free_in_a_row()}", limits=limits)) as gateway:
        sent = asyncio.create_task(gateway.client.post(PATH, json=ASKED))

        async def waits() -> bool:
            return (await series(gateway))['kvgate_waiting_requests{model="sim"}'] == 1

        await until(waits, within=30)
        found = await series(gateway)
        assert found['kvgate_wanted_engines{model="sim",role="both"}'] == 1
        assert found['llm_d_epp_flow_control_pool_saturation{inference_pool="sim"}'] == 1
        assert 'kvgate_predicted_ttft_seconds{model="sim"}' not in found
        sent.cancel()


async def test_prompts_and_answers_are_told_apart():
    async with engines(3) as servers:
        roles = ("prefill", "decode", "both")
        endpoints = tuple(EndpointSettings(url=s.url, role=r) for s, r in zip(servers, roles, strict=True))
        async with running(config_for(endpoints=endpoints, slo=SLO)) as gateway:
            assert (await gateway.client.post(PATH, json=ASKED)).status_code == 200
            found = await series(gateway)
            assert found['kvgate_usable_endpoints{model="sim",role="prefill"}'] == 1
            assert found['kvgate_usable_endpoints{model="sim",role="decode"}'] == 2
            for role in ("prefill", "decode"):
                assert found[f'kvgate_wanted_engines{{model="sim",role="{role}"}}'] >= 1
            assert 'kvgate_wanted_engines{model="sim",role="both"}' not in found


async def wanted_roles(gateway: Running) -> set[str]:
    names = "".join(await series(gateway))
    return set(re.findall(r'kvgate_wanted_engines{model="sim",role="(\w+)"}', names))


async def test_a_roles_series_stays_where_its_last_engine_has_gone():
    async with engines(2) as servers:
        roles = ("prefill", "decode")
        endpoints = tuple(EndpointSettings(url=s.url, role=r) for s, r in zip(servers, roles, strict=True))
        async with running(config_for(endpoints=endpoints, slo=SLO)) as gateway:
            assert await wanted_roles(gateway) == {"prefill", "decode"}
            assert (await gateway.reload(config_for(endpoints=endpoints[1:], slo=SLO))).status_code == 200
            assert len(gateway.gateway.fleet.by_model["sim"]) == 1
            assert await wanted_roles(gateway) == {"prefill", "decode"}


@pytest.mark.parametrize(
    ("handler", "role", "roles"),
    [
        ("prefill-decode", "decode", {"prefill", "decode"}),
        ("prefill-decode", "both", {"both"}),
        ("default", "decode", {"both"}),
    ],
)
async def test_the_configuration_says_the_roles_where_no_engine_that_prefills_was_seen(handler, role, roles):
    async with simulated() as engine:
        endpoints = (EndpointSettings(url=engine.url, role=role),)
        async with running(config_for(endpoints=endpoints, handler=handler)) as gateway:
            assert await wanted_roles(gateway) == roles


async def test_a_worker_that_does_not_lead_wants_one_engine_for_what_it_has(monkeypatch):
    async with engines(1, step_seconds=0.02) as (server,), running(config_for(server.url, slo=SLO)) as gateway:
        it = gateway.gateway
        others = SimpleNamespace(live={0, 1, 2, 3}, is_lead=False)
        scaling = Scaling(lambda: it.reloading.wiring, it.fleet, others, it.clock)
        monkeypatch.setattr("gateway.scaling.wanted_together", lambda *_: Wanted(7, 0.0, 0.0))

        def wanted() -> int:
            ((role,),) = [view.roles for view in scaling.views()]
            return role.wanted

        assert wanted() == 0
        sent = asyncio.create_task(gateway.client.post(PATH, json=ASKED))
        await eventually(lambda: wanted() == 1, within=30)
        await sent
        others.is_lead = True
        assert wanted() == 7
