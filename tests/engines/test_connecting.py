"""A real engine that connects to the gateway with its KV events, and has no replay socket.

One engine of its own, through three gateways and a restart: what each expects of it is what it then reports.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.commands.processes import free_port, wait_for
from tests.engines.chats import Body, chat, system, user
from tests.engines.engine import BLOCK_SIZE, Engine, serving
from tests.engines.gateway import MODEL, Gateway, run_gateway
from tests.engines.prompts import passage

CHAT = "/v1/chat/completions"
NAME = "k"


@pytest.fixture(scope="module")
def connecting(engine_venv: Path, model_folder: Path, run_folder: Path) -> Iterator[Engine]:
    gateway = f"tcp://127.0.0.1:{free_port()}"
    # The topic that is expected if none is configured.
    engine = Engine(
        NAME, engine_venv, model_folder, run_folder, events="connects", gateway=gateway, topic=f"kv@{NAME}@{MODEL}"
    )
    with serving(engine):
        yield engine


@pytest.fixture
def serve(connecting: Engine, model_folder: Path, run_folder: Path) -> Any:
    def start(**kv_cache: Any) -> Any:
        endpoint = {"url": connecting.url, "name": NAME, "kv_events": {"connects": True}}
        model = {"tokenizer": str(model_folder), "kv_cache": kv_cache}
        return run_gateway(run_folder, [endpoint], model, kv_events={"listen": connecting.gateway})

    return start


def body(group: int, question: int) -> Body:
    return chat(system(passage(f"connecting {group}", 100)), user(f"question {question}"), max_tokens=4, temperature=0)


def hit(gateway: Gateway, group: int, question: int) -> tuple[int, int]:
    """Expected and reported, of a request whose events have been heard before the next one is sent."""
    before = gateway.total("kvgate_kv_events_total", kind="stored")
    response = gateway.ask(CHAT, body(group, question)).raise_for_status()
    line = gateway.request(response.headers["x-request-id"])
    assert line["exact"]
    wait_for(lambda: gateway.total("kvgate_kv_events_total", kind="stored") > before, "its blocks", gateway.process)
    return line["expected_hit"], line["cached_tokens"]


def test_what_is_expected_of_it_is_what_it_reports(connecting: Engine, serve: Any) -> None:
    told = connecting.kv_source()
    assert told["endpoint"] == connecting.gateway, "vLLM connects to what has no wildcard"
    assert told["replay_endpoint"] is None
    with serve() as gateway:
        # It answered before the gateway was there, and maybe announced that to nobody: its first message tells.
        hit(gateway, 0, 0)
        for question in range(1, 4):
            expected, reported = hit(gateway, 0, question)
            assert expected == reported >= 3 * BLOCK_SIZE
        assert gateway.streams()[NAME] in ("live", "partial")
        assert gateway.total("kvgate_kv_events_total", kind="unknown-topic") == 0

    with serve() as gateway:
        expected, reported = hit(gateway, 0, 9)
        assert expected < reported, "a gateway that comes later knows nothing of that"
        assert gateway.streams() == {NAME: "partial"}

    with serve(reannounce=1) as gateway:
        expected, reported = hit(gateway, 0, 10)
        assert expected < reported
        for question in range(11, 14):
            expected, reported = hit(gateway, 0, question)
            assert expected == reported >= 3 * BLOCK_SIZE, "it was asked, and told"
        assert gateway.total("kvgate_kv_events_total", kind="orphan") == 0

        connecting.restart()
        wait_for(lambda: not gateway.unusable(), "the engine to be usable", gateway.process)
        for question in range(20, 24):
            expected, reported = hit(gateway, 0, question)
            assert expected == reported
        assert gateway.streams() == {NAME: "live"}
        assert gateway.total("kvgate_kv_gaps_total") == 0
