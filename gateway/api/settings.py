"""What may pass from a client to an engine."""

from __future__ import annotations

from dataclasses import dataclass

NEVER = frozenset(
    {
        "kv_transfer_params",
        "ec_transfer_params",
        # SGLang: where a decode engine fetches KV from, and which rank serves.
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "bootstrap_pair_key",
        "decode_tp_size",
        "data_parallel_rank",
        "data_parallel_rank_decode",
        "routed_dp_rank",
        "disagg_prefill_dp_rank",
        # TensorRT-LLM: the same.
        "disaggregated_params",
    }
)
"""What only the gateway may say: it decides who prefills and who decodes."""


@dataclass(frozen=True, slots=True)
class PassSettings:
    """``vllm_xargs``: keys of that body field that pass; all others are removed, since one can kill an engine.

    ``steering_headers``: headers that steer an engine (``x-data-parallel-rank``, ``x-vllm-priority``,
    ``x-session-id``, ...) which a client may send; lower case; none by default.
    ``authorization``: forward the client's ``Authorization`` to engines that have no key of their own.
    """

    vllm_xargs: tuple[str, ...] = ()
    steering_headers: tuple[str, ...] = ()
    authorization: bool = False

    def __post_init__(self) -> None:
        for name in self.steering_headers:
            if name != name.lower():
                raise ValueError(f"steering_headers: {name!r} must be lower case")
        for name in self.vllm_xargs:
            if name in NEVER:
                raise ValueError(f"vllm_xargs: {name!r} never passes: it steers a hand-over between engines")
