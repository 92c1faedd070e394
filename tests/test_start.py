"""Covers: gateway/cli.py, gateway/serve.py, gateway/tokens/loading.py.

A start imports what it needs and nothing else: what is rare is imported when it is used.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from gateway.commands.processes import offline

RARE = (
    *("transformers", "huggingface_hub", "torch", "numpy", "tiktoken", "mistral_common", "openai_harmony"),
    *("httpx", "click", "ruamel", "redis", "matplotlib", "gateway.commands.replay.command", "simulator"),
)

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


def test_serving_a_usual_tokenizer_imports_nothing_rare(tokenizer, tmp_path):
    path = tmp_path / "plugins.yaml"
    model = {"name": "m", "tokenizer": tokenizer, "endpoints": [{"url": "http://127.0.0.1:1"}]}
    path.write_text(json.dumps({"listen": {"port": 0, "admin": ""}, "models": [model]}))
    command = [sys.executable, "-c", SERVED, str(path), *RARE]
    ended = subprocess.run(command, env=offline(os.environ), capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout.splitlines()[-1:]) == (0, [""]), ended.stdout + ended.stderr
