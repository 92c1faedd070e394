from __future__ import annotations

import pytest

from gateway.api.settings import PassSettings


def test_nothing_special_passes_by_default() -> None:
    assert PassSettings() == PassSettings(vllm_xargs=(), steering_headers=(), authorization=False)


def test_steering_headers_are_lower_case() -> None:
    with pytest.raises(ValueError, match="lower case"):
        PassSettings(steering_headers=("X-Session-Id",))


@pytest.mark.parametrize("name", ["kv_transfer_params", "ec_transfer_params"])
def test_transfer_parameters_cannot_be_listed(name: str) -> None:
    with pytest.raises(ValueError, match="never pass"):
        PassSettings(vllm_xargs=(name,))
