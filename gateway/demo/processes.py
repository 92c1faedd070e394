"""The processes of a run: started, waited for until they answer, and stopped whatever happens.

Each runs in a session of its own, so that Ctrl-C in a terminal reaches the demo alone, which then stops them in order:
none is left behind, and none fills the screen with its own complaint.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from gateway.framework import Clock

START_SECONDS = 60.0
"""A cold import of transformers on a busy laptop takes 20."""

STOP_SECONDS = 5.0
"""Nothing is running when we stop them: whoever has not ended by then is killed."""


class DidNotStart(Exception):
    """A process ended, or answered nothing, where it should have begun to serve. The message has its last words."""


class Processes:
    """A context: what was started in it is gone when it is left, by an exception or Ctrl-C as well."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._running: dict[subprocess.Popen[str], Path] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        with self._impatient():
            for process in self._running:
                process.send_signal(signal.SIGTERM)
            deadline = self._clock.monotonic() + STOP_SECONDS
            for process in self._running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - self._clock.monotonic()))
        for process in self._running:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._running.clear()

    @contextlib.contextmanager
    def _impatient(self) -> Iterator[None]:
        """A second Ctrl-C ends the waiting, not the cleaning up."""
        with contextlib.suppress(KeyboardInterrupt):
            yield

    def start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """Start ``python ARGUMENTS``; what it says on stderr is kept for the case that it fails."""
        log = self._folder / f"{name}.log"
        with log.open("w") as stderr, undisturbed():
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
                env=environment(os.environ),
            )
            self._running[process] = log
        return process

    def engines(self, count: int, flags: Sequence[str]) -> list[str]:
        """Start simulated engines; their URLs. They start side by side: most of it is imports."""
        started = [self.start(f"engine-{number}", "-m", "simulator", *flags) for number in range(count)]
        return [self._addresses(process)["url"] for process in started]

    def gateway(self, config: Mapping[str, Any]) -> str:
        """Start a gateway as a user does; its URL, once all of its engines are usable."""
        path = self._folder / "plugins.yaml"
        path.write_text(json.dumps(config, indent=1))
        url = f"http://127.0.0.1:{(port := free_port())}"
        process = self.start("gateway", "-m", "gateway.cli", "serve", str(path), "--port", str(port))
        self._wait(process, lambda: _usable(url) == sum(len(model["endpoints"]) for model in config["models"]))
        return url

    def _addresses(self, process: subprocess.Popen[str]) -> Any:
        """The line of JSON that an engine prints when it listens."""
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise DidNotStart(self._last_words(process))
        return json.loads(line)

    def _wait(self, process: subprocess.Popen[str], served: Callable[[], bool]) -> None:
        deadline = self._clock.monotonic() + START_SECONDS
        while not served():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.05)
            if process.poll() is not None or self._clock.monotonic() > deadline:
                raise DidNotStart(self._last_words(process))

    def _last_words(self, process: subprocess.Popen[str]) -> str:
        log = self._running[process]
        return f"{log.stem} did not start:\n{log.read_text()[-2000:]}"


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back SIGINT and SIGTERM: an interrupt between a process's birth and our note of it would lose it."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda caught, _: came.append(caught))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def environment(of_ours: Mapping[str, str]) -> dict[str, str]:
    """What a process of the demo sees: never a proxy before loopback, never the hub, one thread for tokenizers.

    Two cores are shared by seven processes: a pool of threads in each would only get in the way of the others.
    """
    kept = {name: value for name, value in of_ours.items() if not name.lower().endswith("_proxy")}
    return kept | {"HF_HUB_OFFLINE": "1", "RAYON_NUM_THREADS": "1"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _usable(url: str) -> int:
    """Endpoints that the gateway would send a request to; 0 while it does not answer."""
    try:
        answer = httpx.get(f"{url}/readyz", timeout=2.0, trust_env=False)
        return sum(int(model["usable"]) for model in answer.json()["models"].values())
    except (httpx.HTTPError, ValueError, KeyError):
        return 0
