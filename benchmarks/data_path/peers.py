"""The Rust routers, from PyPI, each in a virtual environment of its own outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

INSTALL_SECONDS = 600


@dataclass(frozen=True)
class Peer:
    """``command``: what is started of its environment's ``bin``, before the arguments that all have in common."""

    name: str
    version: str
    command: Sequence[str]
    more: Sequence[str]

    @property
    def home(self) -> Path:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "kvgate" / "peers" / f"{self.name}-{self.version}"

    def install(self) -> None:
        """Raises OSError or subprocess.SubprocessError where the registry cannot be had."""
        if (self.home / "installed").exists():
            return
        print(f"installing {self.name} {self.version} into {self.home}", file=sys.stderr)
        venv.create(self.home, with_pip=True, clear=True)
        pip = [str(self.home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"{self.name}=={self.version}"], check=True, timeout=INSTALL_SECONDS)
        (self.home / "installed").touch()

    def line(self, policy: str, port: int, metrics: int, engines: Sequence[str]) -> list[str]:
        """The command line. Quieter than a router is by default, in its favour."""
        return [
            *(str(self.home / "bin" / self.command[0]), *self.command[1:]),
            *("--host", "127.0.0.1", "--port", str(port), "--worker-urls", *engines, "--policy", policy),
            *("--worker-startup-check-interval", "1"),
            *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics), *self.more),
        ]


PEERS = (
    Peer("vllm-router", "0.1.17", ("vllm-router",), ("--log-level", "warning")),
    # Its own tokenizer is for gRPC engines; over HTTP it would only fail to be downloaded.
    Peer(
        *("smg", "1.13.0", ("smg", "launch")),
        ("--log-level", "warn", "--backend", "vllm", "--disable-tokenizer-autoload"),
    ),
    Peer("sglang-router", "0.3.2", ("python", "-m", "sglang_router.launch_router"), ("--log-level", "warn")),
)
