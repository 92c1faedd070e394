"""What is found is served: endpoints that come and go while requests run, and what is wrong changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.config.settings import Config
from gateway.discovery.settings import DiscoverSettings
from gateway.fleet.address import Location
from gateway.fleet.settings import EndpointSettings, KvEventsSettings, TlsSettings
from tests.support.chat import chat
from tests.support.engines import engines, simulated
from tests.support.examples import slowly
from tests.support.gateway import PATIENT_FLEET, Running, config_for, running
from tests.support.wait import eventually, until

PATH = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.discovery.file_source.LOOK", 0.02)
    monkeypatch.setattr("gateway.discovery.discovery.FIRST", 1.0)
    monkeypatch.setattr("gateway.discovering.QUIET", 0.02)


def write(path: Path, *entries: Any) -> None:
    """Replaced as a whole, as a careful writer does."""
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(list(entries)))
    os.replace(beside, path)


def targets(*urls: str, **labels: str) -> dict[str, Any]:
    return {"targets": [url.removeprefix("http://") for url in urls], "labels": labels}


def following(path: Path, *urls: str, **changes: Any) -> Config:
    return config_for(*urls, fleet=PATIENT_FLEET, discover=(DiscoverSettings(file=str(path)),), **changes)


def served(gateway: Running) -> dict[str, str]:
    """The URLs by name, of those that may be used: not of those that a change is about to add."""
    (runtime,) = gateway.gateway.directory.runtimes
    endpoints = gateway.gateway.fleet.endpoints(runtime.model)
    return {one.name: one.engine.url for one in endpoints if not one.draining}


def urls(gateway: Running) -> set[str]:
    return set(served(gateway).values())


async def ask(gateway: Running, number: int = 0, **options: Any) -> httpx.Response:
    return await gateway.client.post(PATH, json=chat(number, **options))


@pytest.mark.parametrize("changes", [3, *slowly(30)])
async def test_no_request_is_lost_while_endpoints_come_and_go(tmp_path, changes):
    path = tmp_path / "engines.json"
    async with engines(5, step_seconds=0.001) as servers:
        always, *others = (server.url for server in servers)
        write(path, targets(others[0]))
        async with running(following(path, always)) as gateway:
            assert urls(gateway) == {always, others[0]}, "found before the first request"
            statuses: list[int] = []
            stop = asyncio.Event()

            async def visit(number: int) -> None:
                chance = random.Random(number)
                while not stop.is_set():
                    stream = chance.random() < 0.5
                    reply = await ask(gateway, chance.randrange(10), stream=stream, max_tokens=8)
                    assert not stream or reply.text.rstrip().endswith("data: [DONE]"), reply.text
                    statuses.append(reply.status_code)

            visits = [asyncio.get_running_loop().create_task(visit(number)) for number in range(16)]
            for number in range(changes):
                here = {others[(number + shift) % 4] for shift in range(number % 4)}
                done = len(statuses)
                write(path, targets(*sorted(here)))
                await eventually(lambda here=here: urls(gateway) == {always, *here}, "the fleet follows")
                await eventually(lambda done=done: len(statuses) >= done + 16, "requests go on", within=60)
            stop.set()
            await asyncio.gather(*visits)
            assert set(statuses) == {200}
            await eventually(gateway.idle, "every permit and reservation is given back")
            assert all(server.running == server.waiting == 0 for server in servers)


async def test_a_model_without_endpoints_serves_as_soon_as_there_is_one(tmp_path):
    path = tmp_path / "engines.json"
    write(path)
    async with simulated() as engine, running(following(path)) as gateway:
        reply = await ask(gateway)
        assert reply.status_code == 503
        assert "Model 'sim' has no endpoint at present" in reply.json()["error"]["message"]
        write(path, targets(engine.url))
        await eventually(lambda: urls(gateway) == {engine.url})
        assert (await ask(gateway)).status_code == 200


async def test_a_file_that_is_broken_or_gone_changes_nothing_and_is_named(tmp_path, caplog):
    path = tmp_path / "engines.json"
    async with engines(2) as servers:
        first, second = (server.url for server in servers)
        write(path, targets(first), targets("nowhere"))
        async with running(following(path)) as gateway:

            async def source() -> dict[str, Any]:
                (told,) = (await gateway.client.get(f"{gateway.admin_url}/discovery")).json()["sources"]
                return dict(told)

            told = await source()
            assert (told["up"], told["endpoints"]) == (True, [first])
            assert told["wrong"] == [
                f"{path}:1: [1].targets[0]: 'nowhere' must be HOST:PORT, with an IPv6 address in brackets"
            ]
            path.write_text('[\n{"targets": ["127.0')  # half written

            async def broken() -> bool:
                return not (await source())["up"]

            await until(broken)
            assert (await source())["problem"].startswith(f"{path}:2: not JSON")
            assert "its last list" in caplog.text or "stay" in caplog.text
            assert urls(gateway) == {first}
            text = await gateway.metrics()
            label = f'model="sim",source="file {path}"'
            assert f"kvgate_discovery_up{{{label}}} 0.0" in text
            assert f"kvgate_discovery_endpoints{{{label}}} 1.0" in text
            path.unlink()

            async def gone() -> bool:
                return "cannot be read" in ((await source())["problem"] or "")

            await until(gone)
            assert urls(gateway) == {first}
            write(path, targets(second))
            await eventually(lambda: urls(gateway) == {second})
            assert (await source())["up"]


async def test_a_reload_keeps_what_is_found_and_a_source_that_moves_is_followed(tmp_path):
    path, other = tmp_path / "engines.json", tmp_path / "others.json"
    async with engines(3) as servers:
        first, second, third = (server.url for server in servers)
        write(path, targets(first))
        write(other, targets(third))
        async with running(following(path)) as gateway:
            (before,) = gateway.gateway.fleet.endpoints(gateway.gateway.directory.runtimes[0].model)
            told = (await gateway.reload(following(path, second))).json()
            assert told["changes"] == ["models[sim].endpoints"]
            endpoints = gateway.gateway.fleet.endpoints(gateway.gateway.directory.runtimes[0].model)
            assert before in endpoints
            assert urls(gateway) == {first, second}
            await gateway.reload(following(other, second))
            assert urls(gateway) == {second, third}
            wrong = following(path, tokenizer=str(tmp_path))
            assert (await gateway.reload(wrong)).status_code == 400
            assert urls(gateway) == {second, third}
            assert [one.label for one in gateway.gateway.reloading.discovering.discovery.following.followers] == [
                f"file {other}"
            ]
            assert len(gateway.gateway.reloading.discovering.discovery._running) == 1
            changed = DiscoverSettings(file=str(other), labels={"zone": "b"})
            other.unlink()
            await gateway.reload(config_for(second, fleet=PATIENT_FLEET, discover=(changed,)))
            assert urls(gateway) == {second, third}, "what was found stays until the source can be read"


async def test_another_engine_at_the_same_address_inherits_nothing(tmp_path, tokenizer):
    """A pod's address is given to another pod: what is believed of the first one's blocks is not true of it."""
    path = tmp_path / "engines.json"
    silent = DiscoverSettings(file=str(path), kv_events=KvEventsSettings(enabled=False))
    async with simulated(tokenizer=tokenizer) as engine:
        write(path, targets(engine.url, name="pod-1"))
        config = config_for(fleet=PATIENT_FLEET, discover=(silent,), tokenizer=tokenizer)
        async with running(config) as gateway:
            for _ in range(2):
                assert (await ask(gateway)).status_code == 200
            assert gateway.lines[-1].expected_hit > 0
            (before,) = gateway.gateway.fleet.endpoints(gateway.gateway.directory.runtimes[0].model)
            write(path, targets(engine.url, name="pod-2"))
            await eventually(lambda: served(gateway) == {"pod-2": engine.url})
            (after,) = gateway.gateway.fleet.endpoints(gateway.gateway.directory.runtimes[0].model)
            assert after.engine is not before.engine
            assert after.load is not before.load
            assert after.cost is not before.cost
            assert (await ask(gateway)).status_code == 200
            assert gateway.lines[-1].expected_hit == 0


async def test_what_does_not_fit_is_left_out_and_the_rest_is_served(tmp_path, caplog):
    path = tmp_path / "engines.json"
    async with engines(3) as servers:
        first, second, third = (server.url for server in servers)
        unusable = {"url": third.replace("http", "https"), "name": "t", "tls": {"ca": str(tmp_path / "none.pem")}}
        connecting = {"url": "http://127.0.0.1:1", "kv_events": {"connects": True}}
        write(path, targets(first, second, name="twin"), targets(first), unusable, connecting)
        async with running(following(path, third)) as gateway:
            assert served(gateway) == {
                Location.of(third).authority: third,
                "twin": first,
                Location.of(second).authority: second,
            }
            left_out = (await gateway.client.get(f"{gateway.admin_url}/discovery")).json()["left_out"]
            assert len(left_out) == 3, left_out
            assert any("none.pem" in line for line in left_out)
            assert any("kv_events.listen" in line for line in left_out)
            assert any("has its name 'twin'" in line for line in left_out)
            assert caplog.text.count("none.pem") == 1


async def test_of_much_that_does_not_fit_some_is_logged(tmp_path, caplog):
    path = tmp_path / "engines.json"
    write(path, *({"url": f"http://127.0.0.1:{port}", "kv_events": {"connects": True}} for port in range(1, 51)))
    async with running(following(path)) as gateway:
        told = (await gateway.client.get(f"{gateway.admin_url}/discovery")).json()
        assert len(told["left_out"]) == 50
        assert caplog.text.count("kv_events.listen") == 20
        assert "30 more are left out or renamed" in caplog.text


async def test_a_name_that_an_engines_rank_has_does_not_stop_the_others(tmp_path):
    path = tmp_path / "engines.json"
    async with engines(1, ranks=2) as (ranked,):
        one = {"url": ranked.url, "name": "a"}
        write(path, one)
        async with running(following(path)) as gateway:
            await eventually(lambda: set(served(gateway)) == {"a/0", "a/1"})
            write(path, {"url": "http://127.0.0.1:1", "name": "a/1"}, {"url": "http://127.0.0.1:2"}, one)
            await eventually(lambda: set(served(gateway)) == {"a/0", "a/1", "127.0.0.1:1", "127.0.0.1:2"})


async def test_changes_that_follow_each_other_are_one(tmp_path, monkeypatch):
    """Pods that start are told one after the other; and where that never ends, they are served all the same."""
    monkeypatch.setattr("gateway.discovering.QUIET", 0.2)
    path = tmp_path / "engines.json"
    write(path)
    async with running(following(path)) as gateway:
        (follower,) = gateway.gateway.reloading.discovering.discovery.following.followers
        fleet, changes = gateway.gateway.fleet, []
        prepare = fleet.prepare

        async def counted(wanted):
            changes.append(len(wanted[0][1]))
            return await prepare(wanted)

        monkeypatch.setattr(fleet, "prepare", counted)
        found = [EndpointSettings(url=f"http://127.0.0.1:{port}") for port in range(1, 101)]
        for count in range(1, 101):
            follower._on_found(found[:count])
            await asyncio.sleep(0)
        await eventually(lambda: len(urls(gateway)) == 100)
        assert changes == [100]
        monkeypatch.setattr("gateway.discovering.MOST", 0.1)
        stop = asyncio.Event()

        async def never_quiet() -> None:
            while not stop.is_set():
                for count in (98, 99):
                    follower._on_found(found[:count])
                    await asyncio.sleep(0.01)

        restless = asyncio.get_running_loop().create_task(never_quiet())
        await eventually(lambda: len(urls(gateway)) < 100)
        stop.set()
        await restless


async def test_an_error_of_our_own_is_not_the_end_of_what_is_found(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("gateway.discovering.RETRY", 0.02)
    path = tmp_path / "engines.json"
    write(path)
    async with running(following(path)) as gateway:
        fleet, failures = gateway.gateway.fleet, [RuntimeError("broken")]
        prepare = fleet.prepare

        async def failing(wanted):
            if failures:
                raise failures.pop()
            return await prepare(wanted)

        monkeypatch.setattr(fleet, "prepare", failing)
        write(path, targets("127.0.0.1:1"))
        await eventually(lambda: urls(gateway) == {"http://127.0.0.1:1"})
        assert "could not be brought into the fleet" in caplog.text


async def test_files_of_tls_that_come_later_are_used(tmp_path, authority):
    path, ca = tmp_path / "engines.json", tmp_path / "later.pem"
    write(path, targets("127.0.0.1:1"))
    source = DiscoverSettings(file=str(path), scheme="https", tls=TlsSettings(ca=str(ca)))
    async with running(config_for(fleet=PATIENT_FLEET, discover=(source,))) as gateway:
        assert urls(gateway) == set()
        discovering = gateway.gateway.reloading.discovering
        authority.made.cert_pem.write_to_path(str(ca))
        discovering._changed.set()
        await eventually(lambda: urls(gateway) == {"https://127.0.0.1:1"})


async def test_settings_of_plugins_yaml_count_before_what_is_found(tmp_path):
    path = tmp_path / "engines.json"
    async with simulated() as engine:
        write(path, targets(engine.url, role="prefill", name="found"))
        config = following(path)
        own = EndpointSettings(url=engine.url, name="own")
        config = replace(config, models=(replace(config.models[0], endpoints=(own,)),))
        async with running(config) as gateway:
            assert served(gateway) == {"own": engine.url}
            assert (await ask(gateway)).status_code == 200
