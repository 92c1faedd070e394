from __future__ import annotations

import pytest

from gateway.kvcache.settings import CacheSettings


@pytest.mark.parametrize(
    "name", ["max_blocks", "block_size", "capacity_tokens", "prediction_seconds", "replay_timeout"]
)
def test_every_number_is_above_zero(name):
    with pytest.raises(ValueError, match=name):
        CacheSettings(**{name: 0})
    assert getattr(CacheSettings(**{name: 1}), name) == 1
