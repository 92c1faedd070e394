"""The gateway as a user runs it: ``kvgate serve CONFIG.yaml`` in a process of its own."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway.commands.processes import Process, free_port, wait_for
from tests.engines.environment import clean_environment

MODEL = "tiny-chat"  # not the engines' name for it, so that every request shows the splice
ALIAS = "gpt-4o"
READY_SECONDS = 60.0
STOP_SECONDS = 45.0  # the default grace for running answers is 30 s


@dataclass(slots=True)
class Gateway:
    """A running ``kvgate serve``. ``log`` holds its JSON lines."""

    process: Process
    port: int
    admin_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """POST ``body`` for the model."""
        return httpx.post(f"{self.url}{path}", json={"model": MODEL, **body}, timeout=60.0)

    def readiness(self) -> httpx.Response:
        return httpx.get(f"{self.url}/readyz", timeout=10.0)

    def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """A scrape of the admin listener: (sample name, its labels) -> value."""
        text = httpx.get(f"http://127.0.0.1:{self.admin_port}/metrics", timeout=10.0).raise_for_status().text
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def total(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry these labels; 0 if there is none."""
        return sum(
            value
            for (sample, its), value in self.samples().items()
            if sample == name and labels.items() <= dict(its).items()
        )

    def unusable(self) -> dict[str, str]:
        """Endpoints that get no requests now, with the reason."""
        return dict(self.readiness().json()["models"][MODEL]["unusable"])

    def streams(self) -> dict[str, str]:
        """Endpoint -> the state of its KV event stream."""
        states = (dict(labels) for name, labels in self.samples() if name == "kvgate_kv_stream_state")
        return {labels["endpoint"]: labels["state"] for labels in states}

    def lines(self) -> list[dict[str, Any]]:
        """The log, one object a line, without the line that is being written now."""
        whole, _, _ = self.process.log.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.split("\n") if line.startswith("{")]

    def requests(self) -> list[dict[str, Any]]:
        """The log lines that tell of a settled request, in the order of settling."""
        return [line for line in self.lines() if "expected_hit" in line]

    def request(self, request_id: str) -> dict[str, Any]:
        """One request's line; it is written just after the answer's last byte, so it is waited for."""

        def written() -> list[dict[str, Any]]:
            return [line for line in self.requests() if line.get("request_id") == request_id]

        (line,) = wait_for(written, f"the log line of request {request_id}", self.process)
        return line


@contextmanager
def run_gateway(
    folder: Path, endpoints: Sequence[Mapping[str, Any]], model: Mapping[str, Any], *, workers: int = 1, **config: Any
) -> Iterator[Gateway]:
    """Serve ``endpoints``, which must all be usable, as one model; at the end SIGTERM, which must exit 0.

    ``workers``: ``listen.workers``. ``config``: more top-level keys of the file. File and log go into a new folder in
    ``folder``.
    """
    port, admin_port = free_port(), free_port()
    listen = {"host": "127.0.0.1", "port": port, "admin": f"127.0.0.1:{admin_port}", "lame_duck": 0}
    document = {
        "listen": {**listen, "workers": workers},
        "log": {"format": "json"},
        "models": [{"name": MODEL, "aliases": [ALIAS], "endpoints": list(endpoints), **model}],
        **config,
    }
    folder = Path(tempfile.mkdtemp(dir=folder, prefix="gateway-"))
    file = folder / "plugins.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    command = Path(sys.executable).with_name("kvgate")
    environment = clean_environment(without=("KVGATE_", "PYTHON"))
    process = Process.start([command, "serve", file], log=folder / "gateway.log", env=environment, cwd=folder)
    gateway = Gateway(process, port, admin_port)
    try:
        wait_for(lambda: answers_ready(gateway), "the gateway", process, READY_SECONDS)
        # An engine that was late with its first answer, on a machine with more to do than cores, is asked again.
        wait_for(lambda: not gateway.unusable(), "all endpoints to be usable", process, READY_SECONDS)
        yield gateway
        assert process.terminate(STOP_SECONDS) == 0, f"kvgate serve did not exit 0\n{process.tail()}"
    finally:
        process.kill()


def answers_ready(gateway: Gateway) -> bool:
    try:
        return gateway.readiness().status_code == 200
    except httpx.TransportError:
        return False
