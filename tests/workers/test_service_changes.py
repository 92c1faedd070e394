"""Covers: gateway/workers/service.py.

When workers begin to serve, and to hear of changes. With a small program in the workers' place, which speaks as those
do.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from gateway.config.settings import Config
from gateway.core.clock import SystemClock
from gateway.workers.reloads import Texts
from gateway.workers.service import Service
from gateway.workers.worker import Command
from tests.support.wait import eventually

LOADED = """
import json, os, socket, time
number = json.loads(os.environ["KVGATE_SEAT"])["number"]
parent = socket.socket(fileno=int(os.environ["KVGATE_PARENT"]))
parent.sendall(b"beat\\nready-DIGEST\\n")
for word in parent.makefile():
    open(f"{FOLDER!r}/heard.{number}", "a").write(word)
    while number == 0 and not os.path.exists(f"{FOLDER!r}/serve"):
        time.sleep(0.01)
    parent.sendall(b"serving\\n")
"""
"""A worker that serves at its parent's word; the first one not before it may."""


@contextlib.asynccontextmanager
async def service(folder: Path, count: int) -> AsyncIterator[Service]:
    texts = Texts(folder / "plugins.yaml", folder)
    texts.begin("models: []")
    program = LOADED.replace("DIGEST", texts.digest).replace("{FOLDER!r}", str(folder))
    how = Command([sys.executable, "-S", "-c", program], {"PATH": ""})
    sockets = [[socket.create_server(("127.0.0.1", 0))] for _ in range(count)]
    made = Service(texts, lambda text: Config(models=()), sockets, folder, how, SystemClock(), lambda config: None)
    made.crew.open()
    try:
        yield made
    finally:
        await made.close()
        assert made.crew.alive == []


async def test_a_worker_that_is_about_to_serve_is_told_of_each_change(folder) -> None:
    async with service(folder, 1) as one:
        one.begin(again=False)
        await eventually(lambda: one.crew.alive, within=30)  # a reload and a drain go to these
        assert not one.crew.alive[0].is_serving
        assert not one.crew.all_serve.is_set()


async def test_who_is_charged_before_the_first_has_read_what_was_kept_would_lose_it(folder) -> None:
    async with service(folder, 2) as both:
        await both.all_loaded.wait()
        both.begin(again=True)
        await eventually(lambda: (folder / "heard.0").exists(), within=30)
        assert both.crew.alive == [both.crew.workers[0]]
        assert not (folder / "heard.1").exists()
        (folder / "serve").touch()
        await both.crew.all_serve.wait()
        assert (folder / "heard.0").read_text() == "go-again\n"
        assert (folder / "heard.1").read_text() == "go\n"
