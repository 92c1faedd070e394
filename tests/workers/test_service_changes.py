"""Covers: gateway/workers/service.py: which workers hear of changes.

With a small program in the workers' place, which speaks as those do.
"""

from __future__ import annotations

import socket
import sys

from gateway.core.clock import SystemClock
from gateway.workers.reloads import Texts
from gateway.workers.service import Service
from gateway.workers.worker import Command
from tests.support.wait import eventually

LOADED = """
import os, socket
parent = socket.socket(fileno=int(os.environ["KVGATE_PARENT"]))
parent.sendall(b"beat\\nready-DIGEST\\n")
for word in parent.makefile():
    pass
"""
"""A worker that has its parent's word to serve, and has not said yet that it does."""


async def test_a_worker_that_is_about_to_serve_is_told_of_each_change(folder) -> None:
    texts = Texts(folder / "plugins.yaml", folder)
    texts.begin("models: []")
    program = LOADED.replace("DIGEST", texts.digest)
    how = Command([sys.executable, "-S", "-c", program], {"PATH": ""})
    listening = socket.create_server(("127.0.0.1", 0))
    service = Service(texts, lambda text: None, [[listening]], folder, how, SystemClock(), lambda config: None)
    try:
        service.begin(again=False)
        service.crew.open()
        await eventually(lambda: service.crew.alive, within=30)
        (worker,) = service.crew.alive  # a reload and a drain go to these
        assert not worker.is_serving
        assert not service.crew.all_serve.is_set()
    finally:
        await service.close()
    assert service.crew.alive == []
