"""``make demo-envoy``, on a small scene."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from gateway.commands.demo import comparison
from gateway.commands.demo.scene import THROUGH_ENVOY, Scene
from tests.envoy.versions import NEWEST, binary

SMALL = Scene(
    engines=2, step_seconds=5e-3, cache_blocks=320, groups=6, system_words=600, users=3, turns=2, at_once=3,
    arrival_seconds=0.05, answer_tokens=4,
)  # fmt: skip
"""Some seconds: 36 requests, whose prompts do not all fit into one cache of the two."""


def test_the_row_of_envoy_is_as_good_as_the_proxys(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(comparison, "VARIANTS", ())  # the others are tested without Envoy
    out = Console(file=io.StringIO(), width=100)
    assert comparison.run(tmp_path / "demo.png", SMALL, out, binary(NEWEST)) == 0
    [result] = json.loads((tmp_path / "demo.json").read_text())["runs"]
    assert result["name"] == THROUGH_ENVOY.name
    assert (result["requests"], result["errors"]) == (SMALL.requests, 0)
    assert result["cached_share"] > 0.5
