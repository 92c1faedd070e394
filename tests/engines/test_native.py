"""Chats of gpt-oss and of tekken files become the ids that vLLM's own code makes of them; no engine runs for that.

The ids that it made are kept in ``tests/data/tokens``, for tests without vLLM. To write them anew:
``KVGATE_WRITE_NATIVE=1 pytest tests/engines/test_native.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.tokens.native_chats import DATE, NATIVE
from tests.tokens.tekken import build_tekken

KEPT = Path(__file__).parents[1] / "data" / "tokens" / "native.json"
SECONDS = 300.0


@pytest.fixture(scope="session")
def theirs(engine_venv: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[int] | None]]:
    folder = build_tekken(tmp_path_factory.mktemp("tekken"))
    done = subprocess.run(
        [engine_venv / "bin" / "python", Path(__file__).with_name("native_rendering.py"), folder],
        input=json.dumps(NATIVE),
        env={**os.environ, "VLLM_SYSTEM_START_DATE": DATE},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout))


def test_the_ids_that_are_kept_are_vllms(theirs: dict[str, dict[str, list[int] | None]]) -> None:
    if os.environ.get("KVGATE_WRITE_NATIVE"):
        lines = [
            f" {json.dumps(family)}: {{\n"
            + ",\n".join(f"  {json.dumps(name)}: {json.dumps(ids)}" for name, ids in chats.items())
            + "\n }"
            for family, chats in theirs.items()
        ]
        KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert json.loads(KEPT.read_text()) == theirs
