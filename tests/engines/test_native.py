"""Chats of gpt-oss and of tekken files become the ids that vLLM's own code makes of them; no engine runs for that.

The ids that it made are kept in ``tests/data/tokens``, for tests without vLLM. To write them anew:
``KVGATE_WRITE_NATIVE=1 pytest tests/engines/test_native.py``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.engines.conftest import Ask
from tests.tokens.native_chats import DATE, NATIVE
from tests.tokens.tekken import build_tekken

KEPT = Path(__file__).parents[1] / "data" / "tokens" / "native.json"


@pytest.fixture(scope="session")
def theirs(ask_vllm: Ask, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[int] | None]]:
    folder = build_tekken(tmp_path_factory.mktemp("tekken"))
    return dict(ask_vllm("native_rendering.py", NATIVE, folder, VLLM_SYSTEM_START_DATE=DATE))


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
