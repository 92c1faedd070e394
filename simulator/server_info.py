"""``GET /server_info``: how the engine was started, as vLLM's development mode tells it; what somebody here reads."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from simulator.call import Call
from simulator.errors import ApiError

FORMATS = ("text", "json")

CONNECTORS = {
    "nixl": "NixlConnector",
    "nixl-push": "NixlPushConnector",
    "mooncake": "MooncakeConnector",
    "shared-storage": "ExampleConnector",
}
"""vLLM's names. SGLang's hand-over is no connector of vLLM."""

LEASE_SECONDS = 30.0
"""vLLM's default: it is not said where nobody has changed it."""


async def answer_server_info(call: Call) -> web.StreamResponse:
    wanted = call.request.query.get("config_format", "text")
    if wanted not in FORMATS:
        raise ApiError(400, "Input should be 'text' or 'json'", "Bad Request", "query.config_format")
    settings = call.settings
    config: Any = {
        "model_config": {"model": settings.tokenizer or settings.served_name, "max_model_len": settings.max_model_len},
        "cache_config": {"block_size": settings.block_size, "num_gpu_blocks": settings.num_blocks},
        "parallel_config": {"tensor_parallel_size": 1, "data_parallel_size": len(call.service.engines)},
        "kv_transfer_config": _transfer_config(call),
    }
    if wanted == "text":
        # What vLLM's text says of the configuration leaves the connector out.
        config = f"model='{settings.tokenizer or settings.served_name}', data_parallel_size={len(call.service.engines)}"
    environment = {
        "VLLM_MOONCAKE_BOOTSTRAP_PORT": settings.bootstrap_port,
        "VLLM_NIXL_SIDE_CHANNEL_HOST": settings.side_channel_host,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": settings.side_channel_port,
        "VLLM_SERVER_DEV_MODE": True,
    }
    return await call.sink.json({"vllm_config": config, "vllm_env": environment, "system_env": {}})


def _transfer_config(call: Call) -> dict[str, Any] | None:
    settings = call.settings
    if settings.connector not in CONNECTORS:
        return None
    extra: dict[str, Any] = {}
    if settings.storage is not None:
        extra["shared_storage_path"] = settings.storage
    if settings.kv_lease_seconds != LEASE_SECONDS:
        extra["kv_lease_duration"] = settings.kv_lease_seconds
    return {
        "kv_connector": CONNECTORS[settings.connector],
        "engine_id": call.service.engine_id,
        "kv_buffer_device": "cpu",
        "kv_role": f"kv_{settings.kv_role}",
        "kv_port": 14579,
        "kv_connector_extra_config": extra,
        "kv_connector_module_path": None,
        "enable_permute_local_kv": False,
        "kv_load_failure_policy": settings.kv_load_failure_policy,
    }
