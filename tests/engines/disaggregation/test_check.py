"""``kvgate check`` and a real pair.

The engines run with a patch of NIXL, see ``unspun/sitecustomize.py``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from tests.engines.disaggregation.conftest import Fleet
from tests.engines.engine import Engine
from tests.engines.environment import clean_environment

HERE = "127.0.0.1"
ELSEWHERE = "0.0.0.0"
"""Reaches this machine, and is no address of the machine that resolves it."""
CHECK_SECONDS = 120.0
"""Above what it gives engines for all its questions: they take seconds, and more beside three other engines."""


def check(folder: Path, model: Path, endpoints: Sequence[Mapping[str, str]], *flags: str) -> list[str]:
    """The lines that it prints of a configuration that is in order."""
    document = {
        "models": [
            {"name": "tiny", "tokenizer": str(model), "handler": "prefill-decode", "endpoints": list(endpoints)},
        ]
    }
    file = folder / "check.yaml"
    file.write_text(yaml.safe_dump(document))
    command = Path(sys.executable).with_name("kvgate")
    environment = clean_environment(without=("KVGATE_", "PYTHON"))
    done = subprocess.run(
        [command, "check", file, *flags],
        capture_output=True,
        text=True,
        timeout=CHECK_SECONDS,
        env=environment,
        check=True,
    )
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]


def endpoint(engine: Engine, role: str, host: str = HERE) -> Mapping[str, str]:
    return {"url": engine.url.replace(HERE, host), "name": engine.name, "role": role}


def about(lines: Sequence[str], engine: Engine, *words: str) -> list[str]:
    return [line for line in lines if f"{engine.name}: " in line and all(word in line for word in words)]


def test_a_pair_that_works(fleet: Fleet, model_folder: Path, tmp_path: Path) -> None:
    pair = [endpoint(fleet.prefill, "prefill"), endpoint(fleet.spare, "decode")]
    lines = check(tmp_path, model_folder, pair, "--probe")
    assert not [line for line in lines if "warning" in line.lower()], lines


def test_what_it_warns_of(fleet: Fleet, model_folder: Path, tmp_path: Path) -> None:
    """An address that only the engine itself can use, a policy that fails requests, no connector."""
    endpoints = [
        endpoint(fleet.prefill, "prefill", ELSEWHERE),
        endpoint(fleet.decode, "decode"),
        endpoint(fleet.plain, "decode"),
    ]
    lines = check(tmp_path, model_folder, endpoints, "--probe")
    assert about(lines, fleet.prefill, "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_HOST"), lines
    assert about(lines, fleet.decode, "kv_load_failure_policy", "recompute"), lines
    assert about(lines, fleet.plain, "KV connector is none"), lines


def test_an_engine_without_a_connector_for_prefill(fleet: Fleet, model_folder: Path, tmp_path: Path) -> None:
    pair = [endpoint(fleet.plain, "prefill"), endpoint(fleet.spare, "decode")]
    lines = check(tmp_path, model_folder, pair, "--probe")
    assert about(lines, fleet.plain, "no kv_transfer_params"), lines


def test_roles_that_are_the_other_way_round(fleet: Fleet, model_folder: Path, tmp_path: Path) -> None:
    pair = [endpoint(fleet.spare, "prefill"), endpoint(fleet.prefill, "decode")]
    lines = check(tmp_path, model_folder, pair)
    assert about(lines, fleet.spare, "kv_role is kv_consumer"), lines
    assert about(lines, fleet.prefill, "kv_role is kv_producer"), lines
