from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.commands.demo.envoy import start_envoy
from gateway.commands.processes import NotReady, Processes, offline


def test_a_picker_that_does_not_start_says_why(tmp_path: Path) -> None:
    config = {"models": [{"name": "sim", "endpoints": [{"url": "ftp://nowhere"}]}]}
    with Processes(tmp_path) as running, pytest.raises(NotReady, match="ftp://nowhere"):
        start_envoy(running, config, Path("/nowhere/envoy"), offline(os.environ))
