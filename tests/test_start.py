"""Covers: gateway/cli.py, gateway/serve.py, gateway/tokens/loading.py, gateway/workers/service.py.

A start imports what it needs and nothing else: what is rare is imported when it is used.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.commands.processes import offline

RARE = (
    *("transformers", "huggingface_hub", "torch", "numpy", "tiktoken", "mistral_common", "openai_harmony"),
    *(
        "google.protobuf",
        "cryptography",
        "hpack",
        "httpx",
        "click",
        "ruamel",
        "redis",
        "matplotlib",
        "gateway.commands.replay.command",
        "simulator",
    ),
)

OF_WORKERS = (
    *(
        "tokenizers",
        "jinja2",
        "zmq",
        "gateway.app",
        "gateway.wiring",
        "gateway.fleet.fleet",
        "gateway.tokens.tokenizer",
    ),
    *("gateway.scheduling.scheduler", "gateway.kvcache.index", "gateway.api.parse", "gateway.proxy.serving.director"),
)
"""What serves, which a parent of workers does not."""

SUPERVISED = """
import os, sys
from unittest import mock
import gateway.cli
import gateway.workers.service

with mock.patch("gateway.workers.service.supervise", mock.AsyncMock(return_value=0)) as supervise:
    assert gateway.cli.main(["serve", sys.argv[1]]) == 0
supervise.assert_awaited_once()
print(*[name for name in sys.argv[2:] if name in sys.modules])
"""

SERVED = """
import asyncio, os, sys
import gateway.cli
from gateway.config.load import load
from gateway.serve import serve

async def main():
    stop = asyncio.Event()
    stop.set()
    await serve(lambda: load(sys.argv[1], os.environ), stop=stop)

async def start():
    from gateway.app import Gateway
    gateway = Gateway(load(sys.argv[1], os.environ))
    try:
        await gateway.start()
        assert gateway.directory.runtimes[0].tokens.state == "exact"
    finally:
        await gateway.close()

asyncio.run(main())
asyncio.run(start())
print(*[name for name in sys.argv[2:] if name in sys.modules])
"""


@pytest.fixture
def config(tokenizer, tmp_path) -> Path:
    path = tmp_path / "plugins.yaml"
    model = {"name": "m", "tokenizer": tokenizer, "endpoints": [{"url": "http://127.0.0.1:1"}]}
    path.write_text(json.dumps({"listen": {"port": 0, "admin": ""}, "models": [model]}))
    return path


def imported(script: str, config: Path, names: Sequence[str]) -> list[str]:
    """Which of ``names`` a process has imported that ran ``script``."""
    command = [sys.executable, "-c", script, str(config), *names]
    ended = subprocess.run(command, env=offline(os.environ), capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.splitlines()[-1].split()


def test_serving_a_usual_tokenizer_imports_nothing_rare(config):
    assert imported(SERVED, config, RARE) == []


def test_a_parent_of_workers_imports_nothing_that_serves(config):
    content = json.loads(config.read_text())
    config.write_text(json.dumps(content | {"listen": {"workers": 2}}))
    assert imported(SUPERVISED, config, (*RARE, *OF_WORKERS)) == []
