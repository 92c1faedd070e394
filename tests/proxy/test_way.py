"""Covers: gateway/proxy/serving/director.py, gateway/proxy/http/connection.py, gateway/proxy/upstream/answer.py.

What a known chat of 2 KB costs on its way through a gateway in a process of its own, in functions and not in seconds,
without a queue and with one: each step is 4 to 5 times dearer between others than alone, so that the number of
different ones is what counts.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from benchmarks.data_path.engines import ORDERS
from gateway.commands.processes import START_SECONDS, Processes, free_port, wait_for
from simulator.template import CHATML, ChatTemplate
from tests.support.chat import WORDS
from tests.support.counted import REQUESTS, ROOT, STEPPED, Report

FUNCTIONS = 184
"""Measured with Python 3.11, those included that dataclasses and named tuples are made by. The aim is 190: who needs
fewer lowers it, and who needs more writes here what for: placing is two functions, so that a queue can look for room
between them; what an answer teaches is two more, since other processes learn it by the same; and a cache's capacity is
one, since estimates are also restored by it. A picker shares the way: what all front doors do is three (``Front``), and
what goes to an engine is made in one of its own. Autoscalers are told of the demand by two, when a request comes and
when it is placed; and whether it may be placed at all, or stands by, is one."""
WITH_QUEUE = FUNCTIONS + 7
"""Of a model with a queue in which nobody waits: whether there is room, what the request costs, and what it took."""

SELDOM = 3600.0
"""Seconds between two scrapes: none falls into a request."""

SYSTEM, FRESH = 2048, 64
"""Bytes of the system prompt, which all requests have in common, and of each one's question."""


@pytest.fixture(scope="module", params=["no-queue", "queue"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tokenizer: str) -> Report:
    folder = tmp_path_factory.mktemp("way")
    result, port = folder / "report.json", free_port()
    with Processes(folder) as processes:
        four = ("-",) * 4  # without KV events: when these come is no request's business
        engines = processes.start(
            "engines", [sys.executable, "-m", "benchmarks.data_path.engines", *four], cwd=ROOT, talks=True
        )
        config = {
            "listen": {"host": "127.0.0.1", "port": port, "admin": f"127.0.0.1:{free_port()}"},
            "fleet": {"scrape": {"interval": SELDOM}},
            "models": [
                {
                    **({"queue": {}} if request.param == "queue" else {}),
                    "name": "sim",
                    "tokenizer": tokenizer,
                    "endpoints": [{"url": url} for url in json.loads(engines.line())["urls"]],
                }
            ],
        }
        (folder / "config.json").write_text(json.dumps(config))
        command = [sys.executable, "-m", "tests.support.counted", folder / "config.json", result]
        gateway = processes.start("gateway", command, cwd=ROOT)
        wait_for(lambda: "serves on" in gateway.log.read_text(), "the gateway to serve", gateway, START_SECONDS)
        ask_all(port, Path(tokenizer))
        wait_for(result.exists, "the report", gateway)
        return Report(**json.loads(result.read_text()))


def test_few_functions_are_touched(report: Report, request: pytest.FixtureRequest) -> None:
    bound = WITH_QUEUE if request.node.callspec.params["report"] == "queue" else FUNCTIONS
    count = sum(len(names) for names in report.functions.values())
    listed = "\n".join(f"{len(names):3} {file}: {', '.join(names)}" for file, names in by_size(report))
    assert count <= bound, f"{count} functions in {report.calls} calls:\n{listed}"


def test_nothing_is_waited_for_before_it_is_sent(report: Report) -> None:
    """The connection's task runs in the iteration behind the one that brought the bytes, and writes to the engine."""
    assert report.iterations == [1] * STEPPED


def by_size(report: Report) -> list[tuple[str, list[str]]]:
    return sorted(report.functions.items(), key=lambda entry: -len(entry[1]))


def ask_all(port: int, tokenizer: Path) -> None:
    """Send every request over one connection, each in one piece, once the one before it is answered."""
    encoder = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    template, chance = ChatTemplate(CHATML, {}), random.Random(1)
    system = words(chance, SYSTEM)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        for _ in range(REQUESTS):
            messages = [{"role": "system", "content": system}, {"role": "user", "content": words(chance, FRESH)}]
            rendered = template.render(messages, add_generation_prompt=True)
            tokens = len(encoder.encode(rendered, add_special_tokens=False).ids)
            # The engine reports the right count: the gateway would not trust its own tokens otherwise.
            body = {"model": "sim", "max_tokens": 400, "messages": messages, ORDERS: f"tokens={tokens}"}
            client.sendall(request(body))
            answer = http.client.HTTPResponse(client)
            answer.begin()
            assert (answer.status, len(answer.read())) == (200, 2048)


def request(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
    return f"{head}User-Agent: test\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def words(chance: random.Random, size: int) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(size))[:size]
