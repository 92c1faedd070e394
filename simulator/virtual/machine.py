"""What one engine runs on: how long its steps take, and how much KV it holds. Profiles of some hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Machine:
    """Sizes in tokens, times in seconds.

    One step takes ``step`` + ``step_request`` for each request that decodes + ``kv_token`` for each of their resident
    tokens + ``prefill_token`` for each new prompt token + ``prefill_quadratic`` for each (such a token x a token
    before it). In ``weights`` of ``step`` the weights are read, while prompts are computed: a step takes the longer of
    these two.

    ``kv_tokens``: of KV memory. ``host_tokens``: of the host tier, which keeps the prompts' blocks; 0: none.
    ``fetch_token``: of the link between both, for each token, in either direction. ``kv_bytes``: of one token's KV,
    which moves to another engine.
    ``max_batched_tokens``, ``max_num_seqs``: of one step, as vLLM's options: 8192 and 1024 on GPUs of H100's class,
    2048 and 256 on smaller ones are its defaults for a server. ``async_scheduling``: a step is scheduled while the one
    before runs, as vLLM 0.32 does by default.
    """

    name: str
    prefill_token: float
    prefill_quadratic: float
    step: float
    step_request: float
    kv_token: float
    kv_tokens: int
    host_tokens: int = 0
    fetch_token: float = 0.0
    max_batched_tokens: int = 8192
    max_num_seqs: int = 1024
    kv_bytes: int = 327_680
    weights: float = 0.0
    async_scheduling: bool = True

    def __post_init__(self) -> None:
        if not self.step > 0:
            raise ValueError("step must be above 0 seconds")
        for name in ("prefill_token", "prefill_quadratic", "step_request", "kv_token", "fetch_token", "host_tokens"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0")
        if not 0 <= self.weights <= self.step:
            raise ValueError("weights must be in 0..step, of which they are a part")
        for name in ("kv_tokens", "kv_bytes", "max_num_seqs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        # As vLLM demands it: so every running request decodes in every step.
        if self.max_batched_tokens < self.max_num_seqs:
            raise ValueError("max_batched_tokens must be at least max_num_seqs")


def _with_host(machine: Machine) -> Machine:
    """With 4 million tokens of host memory: 1.3 TB for 70B. 1.6 us a token: 320 KB over four links of 50 GB/s."""
    return replace(machine, name=f"{machine.name}+host", host_tokens=4_000_000, fetch_token=1.6e-6)


_70B = Machine(
    name="70b-tp4",  # four H100: MFU 45 %, 35 ns per KV token, 15 ms to read the weights and 6 ms of overhead
    prefill_token=79.2e-6,
    prefill_quadratic=1.64e-9,
    step=21e-3,
    step_request=79.2e-6,
    kv_token=34.9e-9,
    kv_tokens=420_000,
    kv_bytes=327_680,  # 80 layers
    weights=15e-3,
)
_8B = Machine(
    name="8b-h100",  # one H100: 6.4 ms to read the weights and 2 ms of overhead
    prefill_token=32e-6,
    prefill_quadratic=1.17e-9,
    step=8.4e-3,
    step_request=32e-6,
    kv_token=55e-9,
    kv_tokens=400_000,
    kv_bytes=131_072,  # 32 layers of 8 heads of 128, keys and values, in BF16
    weights=6.4e-3,
)

MACHINES: Mapping[str, Machine] = {
    machine.name: machine for base in (_70B, _8B) for machine in (base, _with_host(base))
}
"""By name. The figures are rooflines, from the models' shapes and the GPUs' data sheets."""
