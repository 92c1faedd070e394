"""Covers: gateway/kept.py.

What one gateway has learned is known to the next: the file, and whole processes on simulated engines.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from random import Random

import httpx
import pytest

from gateway.commands.processes import offline
from gateway.config.load import load
from gateway.core.clock import ManualClock
from gateway.core.observer import NULL_OBSERVER
from gateway.fleet.fleet import Fleet
from gateway.fleet.settings import EndpointSettings, FleetSettings
from gateway.framework.fleet import Model
from gateway.learned import MAX_AGE, REFRESH, LearnedFile
from tests.support.chat import CHAT
from tests.support.engines import simulated
from tests.support.gateway import config_for, running
from tests.support.processes import KVGATE, find, lines, terminated, told, url_of
from tests.support.wait import eventually
from tests.workers.conftest import document, started

EPOCH = 1_800_000_000.0


class Learner:
    """A fleet of one engine and its file; ``clock`` is the process's."""

    def __init__(self, path: Path, at: float = 0.0, **options: object) -> None:
        self.clock = ManualClock(at, epoch=EPOCH)
        self.model = Model("m")
        endpoints = [EndpointSettings(url="http://127.0.0.1:1")]
        self.fleet = Fleet([(self.model, endpoints)], FleetSettings(), self.clock, NULL_OBSERVER, Random(1))
        self.file = LearnedFile(str(path), self.fleet, lambda: [self.model], self.clock, **options)

    @property
    def scale(self) -> float:
        return self.fleet.cost(self.fleet.endpoints(self.model)[0]).prefill_scale

    def teach(self, output: float = 40.0) -> None:
        self.model.expected_output, self.model.event_tokens = output, 1.5
        cost = self.fleet.cost(self.fleet.endpoints(self.model)[0])
        for at in range(30):
            cost.learn_prefill(1000, 0, 2 * 1000 * cost.start.prefill_token, at=float(at))
            cost.count_request()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


async def written(path: Path, at: float = 0.0) -> Learner:
    """One that has taught, saved and ended."""
    learner = Learner(path, at)
    learner.file.load()
    learner.teach()
    await learner.file.close()
    return learner


async def test_the_next_process_knows_what_was_learned(path, logged):
    before = await written(path)
    assert before.scale == pytest.approx(2, rel=0.1)
    after = Learner(path, 60.0)
    after.file.load()
    assert after.scale == before.scale
    assert (after.model.expected_output, after.model.event_tokens) == (40.0, 1.5)
    assert f"goes on from {path}, 60 s old: answers of 1 of 1 models, costs of 1 of 1 kinds" in logged.text
    assert os.listdir(path.parent) == [path.name]


async def test_without_a_file_it_starts_as_ever_and_says_nothing(path, logged):
    learner = Learner(path)
    learner.file.load()
    assert (learner.scale, learner.model.expected_output) == (1.0, 256.0)
    assert "state" not in logged.text


@pytest.mark.parametrize("age", [MAX_AGE + 1, -MAX_AGE - 1])
async def test_an_old_file_is_not_used_and_one_of_the_future_neither(path, logged, age):
    await written(path, MAX_AGE + 10)
    learner = Learner(path, MAX_AGE + 10 + age)
    learner.file.load()
    assert (learner.scale, learner.model.expected_output) == (1.0, 256.0)
    assert "is not used, all is learned anew: it was written" in logged.text


def changed(**values: object):
    return lambda data: json.dumps(json.loads(data) | values).replace('": ', '":').encode()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[: len(data) // 2], "it is damaged"),
        (lambda data: data[:20], "it is damaged"),
        (lambda data: data.replace(b'"scale":', b'"scale":-'), "no fit comes to that"),
        (lambda data: data.replace(b'"scale":', b'"scale":1e400,"x":'), "it is damaged"),
        (lambda data: data.replace(b'"expected_output":', b'"expected_output":-'), "out of all bounds"),
        (changed(kvgate_state=2), "it has the form 2"),
        (changed(kvgate_state="x"), "it is damaged"),
        (changed(costs=[1]), "it is damaged"),
    ],
)
async def test_a_wrong_file_is_not_used_and_is_replaced(path, logged, damage, said):
    await written(path)
    path.write_bytes(damage(path.read_bytes()))
    learner = Learner(path)
    learner.file.load()
    assert (learner.scale, learner.model.expected_output) == (1.0, 256.0)
    assert said in logged.text
    learner.teach()
    await learner.file.close()
    again = Learner(path)
    again.file.load()
    assert again.scale == learner.scale


@pytest.mark.parametrize("data", [b"models: []\n", b"\x00\x01", b'{"accounts":{}}'])
async def test_a_file_of_another_kind_is_neither_used_nor_overwritten(path, logged, data):
    path.write_bytes(data)
    learner = Learner(path)
    learner.file.load()
    assert "it is no such file, and is left as it is: give another path" in logged.text
    learner.teach()
    await learner.file.close()
    assert path.read_bytes() == data


async def test_a_file_that_cannot_be_read_or_written_is_said_and_nothing_else(path, logged):
    path.mkdir()
    learner = Learner(path)
    learner.file.load()
    assert "it cannot be read: Is a directory" in logged.text
    learner.teach()
    await learner.file.close()
    assert "cannot be written: Is a directory" in logged.text
    assert os.listdir(path.parent) == [path.name]


async def test_models_that_are_gone_or_new_are_no_obstacle(path):
    await written(path)
    learner = Learner(path)
    learner.model.name = "another"
    learner.file.load()
    assert learner.model.expected_output == 256.0


async def test_it_is_written_where_something_has_changed_or_the_file_grows_old(path):
    learner = await written(path)
    first = path.read_bytes()
    learner.clock.now += REFRESH - 1
    await learner.file.save()
    assert path.read_bytes() == first
    learner.clock.now += 1
    await learner.file.save()
    second = path.read_bytes()
    assert json.loads(second)["written"] == json.loads(first)["written"] + REFRESH
    learner.teach(output=41.0)
    await learner.file.save()
    assert b"41.0" in path.read_bytes()


async def test_it_is_written_now_and_then(path):
    learner = Learner(path, interval=0.01)
    learner.file.load()
    learner.file.start()
    await eventually(path.exists, "at once")
    learner.teach()
    await eventually(lambda: b'"expected_output":40.0' in path.read_bytes(), "when something has changed")
    await learner.file.close()


async def test_only_who_is_told_to_writes(path):
    learner = Learner(path, writes=False)
    learner.file.load()
    learner.teach()
    await learner.file.close()
    assert not path.exists()


async def test_who_has_taken_over_is_not_written_over(path, logged):
    old = await written(path)
    new = Learner(path)
    new.file.load()
    await new.file.save(at_last=True)
    new.teach(output=77.0)
    await new.file.save()
    old.teach(output=55.0)
    await old.file.close()
    assert "another process writes" in logged.text
    assert b"77.0" in path.read_bytes()
    path.unlink()
    await new.file.close()
    assert b"77.0" in path.read_bytes(), "a file that was removed is made again"


async def test_one_that_has_never_started_leaves_the_file_alone(path):
    learner = Learner(path)
    await learner.file.close()
    assert not path.exists()


@pytest.mark.slow
async def test_all_workers_go_on_from_the_file_and_one_of_them_writes_it(tmp_path, processes):
    async with simulated(answer_tokens=7) as server:
        content = document(server.url) | {"state": "state.json"}
        path = tmp_path / "state.json"
        async with running(config_for(server.url, state=str(path))) as alone:
            for _ in range(5):
                assert (await alone.client.post("/v1/chat/completions", json=CHAT)).status_code == 200
            expected = alone.gateway.directory.runtimes[0].model.expected_output
        before = json.loads(path.read_bytes())
        assert before["models"]["sim"]["expected_output"] == expected < 256
        async with httpx.AsyncClient(timeout=60, verify=False) as client:
            service = await started(processes, tmp_path, content, client)
            told = [line for line in lines(service.process) if f"goes on from {path}" in line]
            assert len(told) == 2
            assert await terminated(service.process) == 0
        after = json.loads(path.read_bytes())
        assert after["written"] > before["written"]
        assert after["models"] == before["models"]
        assert not [line for line in lines(service.process) if "another process writes" in line]


async def test_a_process_goes_on_from_what_the_one_before_has_learned(tmp_path, processes, logged):
    """And the third from nothing: its file is torn."""
    async with simulated(answer_tokens=7, prefill_token_seconds=1e-6, step_seconds=1e-4) as server:
        config = {
            "listen": {"port": 0, "admin": "127.0.0.1:0", "lame_duck": 0},
            "state": "state.json",
            "models": [{"name": "sim", "endpoints": [{"url": server.url}]}],
            "tenants": {"tenants": [{"name": "default", "budget": {"amount": 100000, "per": "total"}}]},
        }
        path = tmp_path / "plugins.yaml"
        path.write_text(json.dumps(config))
        async with httpx.AsyncClient(timeout=30, verify=False) as client:

            async def start(name: str):
                process = processes.start(name, [*KVGATE, "serve", str(path)], env=offline(os.environ))
                url = await url_of(process)
                return process, url, await told(process, r"metrics on (http://[\d.:]+)/metrics")

            async def learned(admin: str) -> tuple[float, float, float]:
                answer = await client.post(f"{admin}/debug/explain", json=CHAT)
                assert answer.status_code == 200, answer.text
                found = answer.json()
                cost = found["endpoints"][0]["cost"]
                return cost["prefill_scale"], cost["step_scale"], found["expected_output"]

            first, url, admin = await start("first")
            assert await learned(admin) == (1.0, 1.0, 256.0)
            for _ in range(30):
                answer = await client.post(f"{url}/v1/chat/completions", json={**CHAT, "max_tokens": 200})
                assert answer.status_code == 200
            known = await learned(admin)
            assert known[0] != 1.0
            assert known[1] < 0.5
            assert known[2] < 200
            assert await terminated(first) == 0

            second, _, admin = await start("second")
            assert await learned(admin) == pytest.approx(known)
            assert find(second, r"(goes on from .*: answers of 1 of 1 models, costs of 1 of 1)")
            assert await terminated(second) == 0
            assert (tmp_path / "state.json.tenants").exists(), "what tenants have used is beside it"

        kept = (tmp_path / "state.json").read_bytes()
        (tmp_path / "state.json").write_bytes(kept[: len(kept) // 2])
        async with running(load(path, os.environ)) as third:
            assert third.gateway.directory.runtimes[0].model.expected_output == 256.0
            assert "is not used, all is learned anew: it is damaged" in logged.text
            assert (await third.client.post("/v1/chat/completions", json=CHAT)).status_code == 200


async def test_a_process_that_takes_over_has_the_file_and_the_one_before_leaves_it(path):
    old = Learner(path)
    old.file.load()
    old.teach(output=40.0)
    new = Learner(path)
    new.file.load()
    await old.file.pause()
    new.file.found()
    new.file.start()
    new.teach(output=70.0)
    await new.file.save()
    old.teach(output=10.0)
    await old.file.close()
    await new.file.close()
    last = Learner(path)
    last.file.load()
    assert last.model.expected_output == 70.0


async def test_where_the_other_process_fails_the_one_before_goes_on_to_write(path):
    old = Learner(path)
    old.file.load()
    await old.file.pause()
    old.file.start()
    old.teach(output=40.0)
    await old.file.close()
    last = Learner(path)
    last.file.load()
    assert last.model.expected_output == 40.0
