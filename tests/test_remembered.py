from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec
import pytest

from gateway.core.clock import ManualClock
from gateway.core.observer import NULL_OBSERVER
from gateway.core.prompt import Prompt
from gateway.fleet.settings import EndpointSettings, KvEventsSettings
from gateway.kvcache.index.cache_index import CacheIndex
from gateway.kvcache.settings import CacheSettings
from gateway.remembered import INTERVAL, RememberedFile
from tests.kvcache.conftest import endpoint, ids, tokens_held
from tests.support.chat import chat
from tests.support.engines import engines
from tests.support.gateway import IN_TURN, config_for, running

HOUR = 3600.0


class Kept:
    """An index of one endpoint and its file."""

    def __init__(self, path: Path, clock: ManualClock) -> None:
        self.index = CacheIndex(CacheSettings(), "m", clock, NULL_OBSERVER)
        one = endpoint(0, capacity=1600)
        one.engine.up = True
        self.index.add(one, False)
        self.notes: list[tuple[str, bytes]] = []
        self.heard: list[tuple[str, object]] = []
        self.file = RememberedFile(
            str(path),
            clock,
            indexes=lambda: {"m": self.index},
            notes=lambda: self.notes,
            hear=lambda name, note: self.heard.append((name, msgspec.msgpack.decode(note))),
        )

    def place(self, *numbers: int) -> None:
        prompt = ids(*numbers)
        self.index.placed(self.index.keys(Prompt(prompt, len(prompt), True)), endpoint(0, capacity=1600))

    async def save(self) -> None:
        data = await self.file.data(at_last=True)
        assert data is not None
        self.file.write(data)

    def held(self) -> int:
        return tokens_held(self.index, 0, ids(1, 2, 3))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.remembered"


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


@pytest.fixture
async def clock(path: Path) -> ManualClock:
    """After a process has kept a prompt of three blocks."""
    clock = ManualClock(epoch=1_800_000_000.0)
    kept = Kept(path, clock)
    kept.file.recall(HOUR)
    kept.place(1, 2, 3)
    await kept.save()
    return clock


def test_the_next_process_knows_what_was_sent_where(path, clock, logged):
    clock.now += 60
    kept = Kept(path, clock)
    kept.file.recall(HOUR)
    assert kept.held() == 48
    assert f"goes on from {path}, 60 s old: prefixes of 1 endpoints" in logged.text


@pytest.mark.parametrize("age", [HOUR + 1, -HOUR - 1])
def test_an_old_file_is_not_used(path, clock, age):
    clock.now += age
    kept = Kept(path, clock)
    kept.file.recall(HOUR)
    assert kept.held() == 0


@pytest.mark.parametrize("data", [b"", b"\x81", b"models: []", b"\x00" * 10])
def test_a_wrong_file_is_not_used(path, clock, logged, data):
    path.write_bytes(data)
    kept = Kept(path, clock)
    kept.file.recall(HOUR)
    assert kept.held() == 0
    assert "is not used" in logged.text


def test_a_file_of_another_version_is_not_used(path, clock):
    path.write_bytes(msgspec.msgpack.encode(msgspec.msgpack.decode(path.read_bytes()) | {"version": 2}))
    kept = Kept(path, clock)
    kept.file.recall(HOUR)
    assert kept.held() == 0


async def test_the_next_process_hears_what_a_worker_would(path, clock, logged):
    kept = Kept(path, clock)
    kept.file.recall(HOUR)
    kept.notes = [("responses", msgspec.msgpack.encode([1])), ("broken", b"\xc1"), ("plugin/x", b"\x01")]
    await kept.save()
    again = Kept(path, clock)
    again.file.recall(HOUR)
    assert again.heard == [("responses", [1]), ("plugin/x", 1)]
    assert "what it says of broken is not used" in logged.text


async def test_it_is_written_once_a_minute_and_at_the_end_and_not_before_it_was_read(path, clock):
    kept = Kept(path, clock)
    assert await kept.file.data(at_last=True) is None
    kept.file.recall(HOUR)
    assert await kept.file.data(at_last=False) is None
    clock.now += INTERVAL
    assert await kept.file.data(at_last=False) is not None
    assert await kept.file.data(at_last=False) is None
    assert await kept.file.data(at_last=True) is not None


async def test_where_nothing_is_to_be_kept_there_is_no_file(tmp_path, clock):
    kept = Kept(tmp_path / "other", clock)
    kept.file.recall(HOUR)
    assert await kept.file.data(at_last=True) is None


@pytest.mark.parametrize("events", [False, True])
async def test_sessions_find_their_engine_after_a_restart(tokenizer, tmp_path, events):
    """Without events by what is kept, with events by their replay."""
    async with engines(3, tokenizer=tokenizer) as servers:
        config = config_for(
            tokenizer=tokenizer,
            state=str(tmp_path / "state"),
            endpoints=tuple(
                EndpointSettings(url=server.url, kv_events=KvEventsSettings(enabled=events)) for server in servers
            ),
        )
        homes = {}
        async with running(config) as first:
            assert await first.gateway.feed.synced(10)
            for session in range(5):
                reply = await first.client.post("/v1/chat/completions", json=chat(session))
                assert reply.status_code == 200
                homes[session] = first.lines[-1].endpoint
            if events:
                await first.heard(*servers)
        assert ("state.remembered" in os.listdir(tmp_path)) is not events
        async with running(config, seed=7) as second:
            assert await second.gateway.feed.synced(10)
            for session, home in homes.items():
                await second.client.post("/v1/chat/completions", json=chat(session, 1))
                line = second.lines[-1]
                assert line.expected_hit == line.cached_tokens > 0
                assert line.endpoint == home
                assert line.match_source == ("events" if events else "estimated")


async def test_a_response_is_found_after_a_restart(tmp_path):
    async with engines(2) as servers:
        config = config_for(*(server.url for server in servers), state=str(tmp_path / "state"), **IN_TURN)
        asked = {"model": "sim", "input": "hi", "max_output_tokens": 2}
        homes = {}
        async with running(config) as first:
            for _ in range(2):
                reply = await first.client.post("/v1/responses", json=asked)
                homes[reply.json()["id"]] = first.lines[-1].endpoint
        assert len(set(homes.values())) == 2
        async with running(config) as second:
            for response, home in homes.items():
                reply = await second.client.post("/v1/responses", json=asked | {"previous_response_id": response})
                assert reply.status_code == 200, reply.text
                assert second.lines[-1].endpoint == home
