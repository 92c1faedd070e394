"""How an engine says that it was started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.simulator.conftest import Start


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_load_failure_policy": "fail"}),
        (
            {"connector": "nixl-push", "kv_role": "consumer", "kv_load_failure_policy": "recompute"},
            {"kv_connector": "NixlPushConnector", "kv_role": "kv_consumer", "kv_load_failure_policy": "recompute"},
        ),
        ({"connector": "mooncake", "kv_role": "producer"}, {"kv_connector": "MooncakeConnector"}),
        ({"kv_lease_seconds": 9}, {"kv_connector_extra_config": {"kv_lease_duration": 9}}),
    ],
)
async def test_the_connector_and_its_role(start: Start, settings: dict[str, Any], said: dict[str, Any]) -> None:
    running = await start(**settings)
    info = (await running.client.get("/server_info?config_format=json")).json()
    assert set(info) == {"vllm_config", "vllm_env", "system_env"}
    assert info["vllm_config"]["kv_transfer_config"].items() >= said.items()
    assert info["vllm_env"]["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1"


async def test_a_storages_folder(start: Start, tmp_path: Path) -> None:
    running = await start(connector="shared-storage", storage=str(tmp_path))
    config = (await running.client.get("/server_info?config_format=json")).json()["vllm_config"]["kv_transfer_config"]
    assert (config["kv_connector"], config["kv_connector_extra_config"]) == (
        "ExampleConnector",
        {"shared_storage_path": str(tmp_path)},
    )


async def test_without_a_connector(start: Start) -> None:
    running = await start(connector="none")
    info = (await running.client.get("/server_info?config_format=json")).json()
    assert info["vllm_config"]["kv_transfer_config"] is None


async def test_as_text_it_is_one_string(start: Start) -> None:
    running = await start()
    assert isinstance((await running.client.get("/server_info")).json()["vllm_config"], str)
    assert (await running.client.get("/server_info?config_format=xml")).status_code == 400


async def test_only_in_development_mode(start: Start) -> None:
    running = await start(dev_mode=False)
    assert (await running.client.get("/server_info?config_format=json")).status_code == 404
