"""Real ``vllm serve`` processes on loopback, one process group each.

- ``start`` returns at once and ``wait_ready`` waits, so that several engines start side by side (three take 40 s on two
  idle cores).
- ``kill`` ends the whole group at once, as a crash would.
- Every wait has a deadline, and its failure shows the engine's log.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx
from prometheus_client.parser import text_string_to_metric_families

from gateway.commands.processes import Process, free_port, wait_for
from tests.engines.environment import clean_environment, unpin

SERVED_NAME = "tiny"
BLOCK_SIZE = 32  # tokens; the CPU attention of vLLM 0.32 takes multiples of 32 only
MAX_MODEL_LEN = 4096  # tokens; the KV pool must hold one request of this length
TOKEN_BYTES = 2048  # of KV memory, for one token of the tiny model
KV_BYTES = 10 * 1024 * 1024  # 160 blocks, 5120 tokens
IDLE_SECONDS = 10.0  # until a request that has been answered holds no blocks any more
START_SECONDS = 300.0  # three engines at once take 40 s on two idle cores, and minutes on two busy ones


@dataclass(slots=True)
class Engine:
    """One ``vllm serve``.

    ``events``: how its KV events are bound: ``tcp`` on ports that change with each start, or ``ipc`` on a path that
    stays; or ``connects``, to ``gateway`` with ``topic``, and without a replay socket. ``hashes``: what its events call
    blocks by, 64-bit integers or 32 bytes. ``folder``: where its log and ipc sockets go. ``venv``: of ``install.sh``.
    ``model``: of ``model.py``. ``flags``, ``variables``: more of the command line and of the environment.
    """

    name: str
    venv: Path
    model: Path
    folder: Path
    events: Literal["tcp", "ipc", "connects"] = "tcp"
    gateway: str = ""
    topic: str = ""
    hashes: Literal["int", "bytes"] = "int"
    kv_bytes: int = KV_BYTES
    flags: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / f"engine-{self.name}.log"

    @property
    def pid(self) -> int:
        assert self.process is not None, f"engine {self.name} was never started"
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.running

    def start(self) -> None:
        """Start the process, and return at once."""
        assert not self.running, f"engine {self.name} is already running"
        self.process = Process.start(self._command(), log=self.log, env=self._environment(), cwd=self.folder)

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Return when ``/health`` answers 200 and a first token has been generated."""
        assert self.process is not None, f"engine {self.name} was never started"
        wait_for(self._healthy, f"engine {self.name}", self.process, seconds)
        # On a CPU vLLM's NIXL connector binds its thread to the last core, where several engines would starve.
        unpin(self.process)
        self.generate_one()

    def generate_one(self) -> None:
        """One step on one token, which caches nothing: no block is full."""
        self.ask("/v1/completions", {"prompt": [5], "max_tokens": 1}).raise_for_status()

    def kv_source(self) -> dict[str, Any]:
        """Where its KV events are: ``endpoint``, ``replay_endpoint``, ``topic``, ... of rank 0."""
        return dict(httpx.get(f"{self.url}/kv_event_sources", timeout=30.0).raise_for_status().json()["0"])

    def kill(self) -> None:
        """End the whole process group at once (SIGKILL), and wait until it is gone. Idempotent."""
        if self.process is not None:
            self.process.kill()
            self.process = None

    def pause(self) -> None:
        """Stop the whole group (SIGSTOP): its kernel goes on taking connections and bytes, and nobody answers."""
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Kill, start on the same port, and wait."""
        self.kill()
        self.start()
        self.wait_ready()

    def ask(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """POST ``body`` for its model."""
        return httpx.post(f"{self.url}{path}", json={"model": SERVED_NAME, **body}, timeout=60.0)

    def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """A scrape: (sample name, its labels) -> value."""
        text = httpx.get(f"{self.url}/metrics", timeout=30.0).raise_for_status().text
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def metrics(self) -> Mapping[str, float]:
        """A scrape: sample name -> the sum over its labels. An absent name counts 0."""
        sums: dict[str, float] = defaultdict(float)
        for (name, _), value in self.samples().items():
            sums[name] += value
        return sums

    def prefix_hits(self) -> int:
        """Prompt tokens served from the prefix cache since the start, by the engine's own count."""
        return int(self.metrics()["vllm:prefix_cache_hits_total"])

    def reset_cache(self) -> None:
        """Empty the prefix cache, and have it announced: that comes with the next step. The engine must be idle."""
        deadline = time.monotonic() + IDLE_SECONDS
        while httpx.post(f"{self.url}/reset_prefix_cache", timeout=30.0).raise_for_status().json() != {"success": True}:
            assert time.monotonic() < deadline, f"engine {self.name} still holds blocks\n{self.tail()}"
            time.sleep(0.05)
        self.generate_one()

    def tail(self) -> str:
        return "" if self.process is None else self.process.tail()

    def _healthy(self) -> bool:
        try:
            # It is asked often: without certificates to load each time.
            return httpx.get(f"{self.url}/health", timeout=5.0, verify=False).status_code == 200
        except httpx.HTTPError:
            return False

    def _command(self) -> list[str]:
        return [
            str(self.venv / "bin" / "vllm"),
            "serve",
            str(self.model),
            *("--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", SERVED_NAME),
            *("--dtype", "float32", "--enforce-eager", "--distributed-executor-backend", "uni"),
            *("--max-model-len", str(MAX_MODEL_LEN), "--block-size", str(BLOCK_SIZE)),
            *("--kv-cache-memory-bytes", str(self.kv_bytes), "--enable-prefix-caching"),
            *("--kv-events-config", json.dumps(self._events())),
            # usage.prompt_tokens_details.cached_tokens: what our expected hit is compared with
            "--enable-prompt-tokens-details",
            *("--disable-access-log-for-endpoints", "/metrics,/health"),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
            # test_tokens.py sends templates of its own
            "--trust-request-chat-template",
            *self.flags,
        ]

    def _events(self) -> dict[str, object]:
        sockets = {
            # vLLM binds its VLLM_HOST_IP on a free port, and tells which on /kv_event_sources
            "tcp": {"endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0"},
            "ipc": {
                "endpoint": f"ipc://{self.folder}/{self.name}-pub",
                "replay_endpoint": f"ipc://{self.folder}/{self.name}-replay",
            },
            "connects": {"endpoint": self.gateway},
        }
        return {"enable_kv_cache_events": True, "publisher": "zmq", "topic": self.topic, **sockets[self.events]}

    def _environment(self) -> dict[str, str]:
        return clean_environment(without=("VLLM_", "PYTHON", "HF_")) | {
            "PATH": f"{self.venv / 'bin'}:{os.environ.get('PATH', os.defpath)}",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_SERVER_DEV_MODE": "1",  # POST /reset_prefix_cache
            "VLLM_ENABLE_RESPONSES_API_STORE": "1",  # previous_response_id
            # One thread each, free to move: several engines share two cores, and bound ones starve each other.
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "1" if self.hashes == "int" else "0",
            # Without this the uni executor is silently put back to one more process.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            **self.variables,
        }


def start_all(engines: Sequence[Engine]) -> None:
    """Start all at once and wait for all; kill all if one fails."""
    try:
        for engine in engines:
            engine.start()
        for engine in engines:
            engine.wait_ready()
    except BaseException:
        for engine in engines:
            engine.kill()
        raise


@contextlib.contextmanager
def serving(*engines: Engine) -> Iterator[None]:
    """All engines have started; all are killed in the end."""
    start_all(engines)
    try:
        yield
    finally:
        for engine in engines:
            engine.kill()


def build_model(venv: Path, cache: Path, name: str = "tiny-llama") -> Path:
    """A tiny model's folder under ``cache``, built by the venv's Python unless it is there already."""
    text = Path(__file__).with_name("model.py")
    source = text if name == "tiny-llama" else text.with_name("vision_model.py")
    made_of = hashlib.sha256(b"".join(file.read_bytes() for file in sorted({text, source})))
    target = cache / f"{name}-{made_of.hexdigest()[:12]}"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"{target.name}.{os.getpid()}")
        subprocess.run([venv / "bin" / "python", source, partial], check=True, timeout=300, stdout=sys.stderr)
        partial.rename(target)
    return target
