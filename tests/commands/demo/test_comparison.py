from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import uuid
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from gateway.commands.demo import comparison as demo
from gateway.commands.demo.scene import Scene
from gateway.commands.processes import NotReady, Processes, offline
from tests.support.examples import slowly


@pytest.mark.slow
def test_the_whole_of_it_on_a_small_scene(small: Scene, tmp_path: Path) -> None:
    out = Console(file=io.StringIO(), width=100)
    output = tmp_path / "new" / "demo.png"
    assert demo.run(output, small, out) == 0
    numbers = json.loads(output.with_suffix(".json").read_text())
    assert numbers["scene"]["groups"] == small.groups
    round_robin, default = numbers["runs"]
    for result in (round_robin, default):
        assert (result["requests"], result["errors"]) == (small.requests, 0)
        assert 0 < result["ttft_p50"] <= result["ttft_p99"]
    assert round_robin["prompt_tokens"] == pytest.approx(default["prompt_tokens"], rel=0.02)
    assert default["cached_tokens"] > round_robin["cached_tokens"]
    assert output.read_bytes().startswith(b"\x89PNG")
    text = out.file.getvalue()
    assert "36 of 36 requests, 0 failed" in text
    assert str(output.with_suffix(".json")) in text.replace("\n", "")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NotReady("engine-0 did not start:\nno [memory] left"), "no [memory] left"),
        (httpx.ConnectError("refused"), "an engine died: ConnectError('refused')"),
    ],
)
def test_what_failed_is_said_and_no_result_is_shown(small: Scene, tmp_path: Path, monkeypatch, error, said) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(demo, "play", fail)
    out = Console(file=io.StringIO(), width=100)
    assert demo.run(tmp_path / "demo.png", small, out) == 1
    assert said in out.file.getvalue()
    assert list(tmp_path.iterdir()) == []


def marked(mark: str) -> list[str]:
    """Processes that carry this mark in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes():
                found.append(process.name)
    return found


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGTERM, "starting engines"),
        *slowly((signal.SIGINT, "starting"), (signal.SIGINT, "36 of 144")),
    ],
)
def test_an_interrupt_leaves_no_process_behind(
    number: signal.Signals, moment: str, tmp_path: Path, processes: Processes
) -> None:
    mark = str(uuid.uuid4())
    words = [sys.executable, "-u", "-m", "gateway.cli", "demo", "--output", str(tmp_path / "demo.png")]
    process = processes.start("demo", words, env=offline(os.environ) | {"MARK": mark}, talks=True)
    assert process.child.stdout is not None
    for line in process.child.stdout:
        if moment in line:
            break
    assert str(process.pid) in marked(mark)
    process.child.send_signal(number)
    process.child.communicate(timeout=60)
    assert process.child.returncode == 130
    assert marked(mark) == []
