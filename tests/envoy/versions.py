"""The Envoys that these tests run, as install.sh has installed them."""

from __future__ import annotations

import os
from pathlib import Path

NEWEST = "1.40.0"
OLDEST = "1.36.2"


def binary(version: str) -> Path:
    """The program itself: the script beside it starts an interpreter first."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    venv = Path(base) / "kvgate" / f"envoy-{version}"
    return next(iter(venv.glob("lib/python*/site-packages/envoy/_bin/envoy")), venv / "bin/envoy")


def installed() -> bool:
    return all(binary(version).exists() for version in (NEWEST, OLDEST))
