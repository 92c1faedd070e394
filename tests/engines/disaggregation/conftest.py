"""Four engines: one that prefills, two that decode, and one without a connector that says what is right.

They are a set of their own, and this folder a pytest session of its own in the Makefile: two cores do not carry these
four beside the engines of the folder above.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engines.disaggregation.pair import transferring
from tests.engines.engine import Engine, serving
from tests.engines.gateway import Gateway, run_gateway


@dataclass(frozen=True, slots=True)
class Fleet:
    """``decode`` fails a request whose KV does not come (vLLM's default), ``spare`` computes it. ``plain`` is alone."""

    plain: Engine
    prefill: Engine
    decode: Engine
    spare: Engine

    @property
    def engines(self) -> list[Engine]:
        return [self.plain, self.prefill, self.decode, self.spare]


@pytest.fixture(scope="session")
def started_fleet(engine_venv: Path, model_folder: Path, run_folder: Path) -> Iterator[Fleet]:
    where = engine_venv, model_folder, run_folder
    fleet = Fleet(
        Engine("plain", *where),
        transferring("prefill", "kv_producer", *where),
        transferring("decode", "kv_consumer", *where),
        transferring("spare", "kv_consumer", *where, policy="recompute"),
    )
    with serving(*fleet.engines):
        yield fleet


@pytest.fixture
def fleet(started_fleet: Fleet) -> Fleet:
    """All of them running, whatever an earlier test did to them. Their caches hold what earlier tests sent."""
    for engine in started_fleet.engines:
        if not engine.running:
            engine.restart()
    return started_fleet


def run_split(
    folder: Path, model: Path, prefill: Engine, decode: Sequence[Engine], threshold: int = 1, **config: Any
) -> AbstractContextManager[Gateway]:
    """A gateway that splits prompts from ``threshold`` tokens on which the decode engine does not hold."""
    endpoints = [{"url": prefill.url, "name": prefill.name, "role": "prefill"}]
    endpoints += [{"url": engine.url, "name": engine.name, "role": "decode"} for engine in decode]
    handler = {"name": "prefill-decode", "type": "prefill-decode", "parameters": {"threshold": threshold}}
    settings = {"tokenizer": str(model), "handler": "prefill-decode"}
    return run_gateway(folder, endpoints, settings, handlers=[handler], **config)
