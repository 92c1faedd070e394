"""Engines whose KV goes from one to the other: vLLM's NixlConnector, on loopback, from memory to memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from gateway.commands.processes import free_port, wait_for
from tests.engines.engine import Engine

LEASE_SECONDS = 30  # for which a prefill engine keeps blocks that nobody has read; vLLM's default
KV_BYTES = 40 * 1024 * 1024
"""640 blocks, 20,480 tokens: what a failed hand-over leaves on the prefill engine until its lease ends must not
displace the next test's."""


def transferring(
    name: str,
    role: Literal["kv_producer", "kv_consumer"],
    venv: Path,
    model: Path,
    folder: Path,
    *,
    policy: Literal["fail", "recompute"] = "fail",
) -> Engine:
    """An engine with a NIXL connector. ``policy``: what becomes of a request whose KV does not come."""
    config = {
        "kv_connector": "NixlConnector",
        "kv_role": role,
        "kv_load_failure_policy": policy,
        "kv_connector_extra_config": {"kv_lease_duration": LEASE_SECONDS},
    }
    return Engine(
        name,
        venv,
        model,
        folder,
        kv_bytes=KV_BYTES,
        flags=["--kv-transfer-config", json.dumps(config)],
        variables={
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
            "UCX_TLS": "tcp,shm,self",
            "UCX_NET_DEVICES": "lo",
            # see there: it patches NIXL, which would take a core for each engine
            "PYTHONPATH": str(Path(__file__).with_name("unspun")),
            # vLLM sets it too, but the patch is before it
            "UCX_RCACHE_MAX_UNRELEASED": "1024",
        },
    )


def tokens_by_source(engine: Engine) -> Mapping[str, float]:
    """Prompt tokens since the start, by where their KV came from."""
    samples = engine.samples().items()
    return {
        dict(labels)["source"]: value
        for (name, labels), value in samples
        if name == "vllm:prompt_tokens_by_source_total"
    }


class Sources:
    """What an engine counts of its prompts' tokens from now on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._before = tokens_by_source(engine)

    def add_up_to(self, tokens: int) -> Mapping[str, int]:
        """By source, once they are ``tokens`` in all: an engine counts a little later than it answers."""

        def counted() -> bool:
            return sum(self._since().values()) >= tokens

        assert self._engine.process is not None
        wait_for(counted, f"the count of {tokens} prompt tokens", self._engine.process)
        return self._since()

    def _since(self) -> Mapping[str, int]:
        now = tokens_by_source(self._engine)
        return {source: int(count - self._before.get(source, 0)) for source, count in now.items()}
