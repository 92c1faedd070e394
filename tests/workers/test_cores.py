from __future__ import annotations

import os

import pytest

from gateway.workers.cores import usable_cores, worker_count


@pytest.mark.parametrize(("limit", "cores"), [("max 100000", 4), ("150000 100000", 2), ("1 100000", 1), ("x", 4)])
def test_a_container_s_limit_counts(tmp_path, monkeypatch, limit, cores) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    (tmp_path / "cpu.max").write_text(f"{limit}\n")
    assert usable_cores(tmp_path / "cpu.max") == cores
    assert usable_cores(tmp_path / "none") == 4


def test_auto_is_the_cores() -> None:
    assert worker_count("auto") == usable_cores() >= 1
    assert worker_count(3) == 3
