from __future__ import annotations

import pytest

from gateway.api.settings import NEVER, PassThroughSettings


def test_nothing_special_passes_by_default() -> None:
    assert PassThroughSettings() == PassThroughSettings(vllm_xargs=(), steering_headers=(), authorization=False)


def test_steering_headers_are_lower_case() -> None:
    with pytest.raises(ValueError, match="lower case"):
        PassThroughSettings(steering_headers=("X-Session-Id",))


@pytest.mark.parametrize("name", sorted(NEVER))
def test_transfer_parameters_cannot_be_listed(name: str) -> None:
    with pytest.raises(ValueError, match=f"vllm_xargs: {name!r} never passes"):
        PassThroughSettings(vllm_xargs=(name,))
