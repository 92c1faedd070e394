from __future__ import annotations

from pathlib import Path

import pytest

from gateway.tokens.heap import give_back

PIECES, SIZE = 60_000, 1000


def own_bytes() -> int:
    lines = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return 1024 * int(lines["Private_Dirty"].split()[0])


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux tells of memory there")
def test_what_was_freed_is_given_back() -> None:
    pieces = [bytes([number % 256]) * SIZE for number in range(PIECES)]
    last = pieces.pop()  # behind the others, which are not given back by themselves then
    before = own_bytes()
    pieces.clear()
    kept = own_bytes()
    give_back()
    assert kept > before - PIECES * SIZE // 2, "they are given back anyway"
    assert own_bytes() < before - PIECES * SIZE // 2
    assert len(last) == SIZE
