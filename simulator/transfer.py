"""``kv_transfer_params``: what the NIXL connector of an engine makes of them, and how they kill it.

Only as much as a gateway's tests need: the answer of a prefill leg has the fields of the real one, a decode leg takes
its KV as computed, and no bytes move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulator.errors import EngineDead, invalid
from simulator.job import Job

REMOTE_FIELDS = (
    "remote_engine_id",
    "remote_request_id",
    "remote_host",
    "remote_port",
    "remote_block_ids",
    "tp_size",
)
"""Without all of them the decode engine's scheduler fails on an assertion or a KeyError, and takes the engine along."""

SIDE_CHANNEL_PORT = 5600
"""VLLM_NIXL_SIDE_CHANNEL_PORT's default. Nothing listens there."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """``prefill``: this is a prefill leg, whose KV stays for another engine. ``remote_tokens``: prompt tokens that come
    from another engine (a decode leg). ``remote_cached``: what that one reports to have found in its cache.
    """

    prefill: bool = False
    remote_tokens: int = 0
    remote_cached: int | None = None


def read_transfer(body: Mapping[str, Any]) -> Transfer | None:
    """The parameters of a body, wherever they hide. Raises ApiError for a wrong type, EngineDead for what kills."""
    params = body.get("kv_transfer_params")
    if params is not None and not isinstance(params, dict):
        raise invalid("dict_type", "body.kv_transfer_params", "Input should be a valid dictionary", body)
    extra = body.get("vllm_xargs")
    if params is None and isinstance(extra, dict) and "kv_transfer_params" in extra:
        # ``extra_args`` are read unchecked: a string has no ``get``.
        params = extra["kv_transfer_params"]
        if not isinstance(params, dict):
            raise EngineDead("vllm_xargs.kv_transfer_params is no object")
    if not params:
        return None
    if params.get("do_remote_prefill"):
        absent = [name for name in REMOTE_FIELDS if params.get(name) is None]
        if absent:
            raise EngineDead(f"do_remote_prefill without {', '.join(absent)}")
        tokens, cached = params.get("remote_num_tokens"), params.get("remote_prefill_cached_tokens")
        return Transfer(
            remote_tokens=tokens if isinstance(tokens, int) else 2**32,
            remote_cached=cached if isinstance(cached, int) else None,
        )
    return Transfer(prefill=True) if params.get("do_remote_decode") else None


def prefill_result(job: Job, blocks: list[int], request_id: str, engine_id: str, host: str) -> dict[str, Any]:
    """What a prefill leg's answer carries for the decode leg. ``blocks``: the job's when it ended."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [blocks],
        "remote_engine_id": engine_id,
        "remote_request_id": request_id,
        "remote_host": host,
        "remote_port": SIDE_CHANNEL_PORT,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": job.prompt_tokens,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": job.cached or 0,
    }
