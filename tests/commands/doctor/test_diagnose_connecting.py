"""What the doctor says of engines that shall connect to the gateway."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.commands.doctor.diagnose import diagnose
from gateway.commands.doctor.finding import Finding, Level, Report
from gateway.config.load import loads
from tests.support.engines import simulated

TOPIC = "kv@a@sim"


@pytest.fixture
def listen() -> str:
    """An address that was free a moment ago."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{one.getsockname()[1]}"


async def examined(tokenizer: str, listen: str, url: str, **endpoint: Any) -> Report:
    endpoints = [{"url": url, "name": "a", "kv_events": {"connects": True}, **endpoint}]
    model = {"name": "sim", "tokenizer": tokenizer, "endpoints": endpoints}
    gateway = Gateway(loads(json.dumps({"models": [model], "kv_events": {"listen": listen}}), {}))
    try:
        await gateway.load()
        ((report,), _) = await diagnose(gateway, timeout=60.0)
        return report
    finally:
        await gateway.close()


def of(report: Report, check: str) -> Finding:
    finding = report.of(check)
    assert finding is not None
    return finding


async def test_one_that_connects_is_green(tokenizer: str, listen: str) -> None:
    async with simulated(tokenizer=tokenizer, kv_connect=listen, topic=TOPIC) as server:
        report = await examined(tokenizer, listen, server.url)
    assert report.level < Level.WARNING, report.findings
    assert (of(report, "events").short, of(report, "replay").short) == ("live", "yes")


async def test_without_replay_it_says_what_else_helps(tokenizer: str, listen: str) -> None:
    async with simulated(tokenizer=tokenizer, kv_connect=listen, topic=TOPIC, replay=False) as server:
        report = await examined(tokenizer, listen, server.url)
    assert (of(report, "events").short, of(report, "replay").level) == ("live", Level.WARNING)
    assert "kv_cache.reannounce" in of(report, "replay").remedy


@pytest.mark.parametrize("replay", [True, False])
async def test_beside_a_gateway_only_its_history_can_be_seen(tokenizer: str, listen: str, replay: bool) -> None:
    with socket.socket() as gateway:
        gateway.bind(("127.0.0.1", int(listen.rpartition(":")[2])))
        gateway.listen()
        async with simulated(tokenizer=tokenizer, kv_connect=listen, topic=TOPIC, replay=replay) as server:
            report = await examined(tokenizer, listen, server.url)
    finding = of(report, "events")
    assert (finding.level, finding.short) == (Level.NOTE, "not heard")
    assert "kvgate_kv_stream_state" in finding.said
    assert of(report, "replay").short == ("yes" if replay else "none")


async def test_it_connects_elsewhere(tokenizer: str, listen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.commands.doctor.events.ANNOUNCE", 0.5)  # nothing comes, however slow the machine
    async with simulated(tokenizer=tokenizer, kv_connect="tcp://127.0.0.1:1", topic=TOPIC) as server:
        finding = of(await examined(tokenizer, listen, server.url), "events")
    assert (finding.level, finding.short) == (Level.FAILED, "silent")
    assert f"nothing with the topic '{TOPIC}' came to {listen}" in finding.said
    assert f'"topic":"{TOPIC}"' in finding.remedy


async def test_its_topic_is_another(tokenizer: str, listen: str) -> None:
    async with simulated(tokenizer=tokenizer, kv_connect=listen, topic="mine") as server:
        finding = of(await examined(tokenizer, listen, server.url), "events")
        again = await examined(tokenizer, listen, server.url, kv_events={"connects": True, "topic": "mine"})
    assert (finding.level, finding.short) == (Level.FAILED, "topic")
    assert f"with the topic 'mine', and '{TOPIC}' is expected" in finding.said
    assert of(again, "events").short == "live"


async def test_it_listens_itself(tokenizer: str, listen: str) -> None:
    async with simulated(tokenizer=tokenizer, topic=TOPIC) as server:
        finding = of(await examined(tokenizer, listen, server.url), "events")
    assert (finding.level, finding.short) == (Level.FAILED, "listens")
    assert "remove kv_events.connects" in finding.remedy


async def test_its_events_are_off(tokenizer: str, listen: str) -> None:
    async with simulated(tokenizer=tokenizer, kv_events=False) as server:
        finding = of(await examined(tokenizer, listen, server.url), "events")
    assert (finding.level, finding.short) == (Level.FAILED, "off")
    assert f'"topic":"{TOPIC}"' in finding.remedy


async def test_it_has_ranks_and_its_endpoint_has_not(tokenizer: str, listen: str) -> None:
    async with simulated(tokenizer=tokenizer, kv_connect=listen, topic=TOPIC, ranks=2) as server:
        finding = of(await examined(tokenizer, listen, server.url, ranks=1), "events")
    assert (finding.level, finding.short) == (Level.FAILED, "ranks")
