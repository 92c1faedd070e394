"""What work costs before anything was seen of it: profiles of known hardware, and a roofline over a model's shape.

    prefill_token     = 2 * active parameters / FLOPs          every parameter multiplies and adds once per token
    prefill_quadratic = 4 * layers * attention width / FLOPs   queries times keys, and weights times values
    kv_token          = KV bytes per token / bandwidth         a step reads the KV of each resident token
    step              = weight bytes / bandwidth + overhead    and all weights, once for the whole batch

FLOPs and bandwidth: those of ``tensor_parallel`` GPUs, as far as they are reached (``MFU``, ``BANDWIDTH_REACHED``).
Within a tenth of the profiles, which come from the same formulas. Halving or doubling all of it hardly moves a
decision, so what the shape leaves out (sliding windows, layers without attention, quantised arithmetic) is left to the
fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from gateway.fleet.settings import CostSettings
from gateway.fleet.shape import Shape

MFU = 0.45
"""Of the peak FLOPs that a prefill reaches: what BLIS has fitted for vLLM on H100 (inference-sim/inference-sim)."""

BANDWIDTH_REACHED = 0.7
"""Of the peak bandwidth that a decode step reaches: what the profiles have."""

LAYER_OVERHEAD = 62.5e-6
"""Seconds a layer adds to a step beside its reading: kernels and the host's part. 2 ms of an 8B model's 32 layers."""

PARALLEL_OVERHEAD = 12.5e-6
"""Seconds more a layer where its GPUs exchange what they have: 6 ms in all of a 70B model's 80 layers."""

BATCH = 16
"""Requests of the step whose reading a mixture of experts is given: one alone reads few of them, hundreds read all."""


CPU_LINK = 50e9
"""Bytes a second between one GPU and the CPU's memory: PCIe 5, as far as it is reached."""

STORAGE_LINK = 12.5e9
"""Bytes a second between an engine and a store: 100 Gbit/s."""

STEP_TOKENS = 8192
"""Prompt tokens that an engine computes in one step: vLLM's default ``max_num_batched_tokens`` on an H100."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Starting values of one core's cost model, as ``CostSettings`` explains them. The defaults are the profile
    ``70b-tp4``."""

    prefill_token: float = 79.2e-6
    prefill_quadratic: float = 1.64e-9
    step: float = 21e-3
    step_request: float = 79.2e-6
    kv_token: float = 34.9e-9
    cpu_fetch: float = 1.6e-6
    storage_fetch: float = 25.6e-6
    step_tokens: int = STEP_TOKENS
    fit: bool = True


PROFILES: Mapping[str, Costs] = {
    # Llama 3 70B in BF16 on four H100: MFU 45 %, 35 ns per KV token, 15 ms to read the weights and 6 ms of overhead.
    "70b-tp4": Costs(),
    # Llama 3 8B in BF16 on one H100: 6.4 ms to read the weights and 2 ms of overhead.
    "8b-h100": Costs(
        prefill_token=32e-6,
        prefill_quadratic=1.17e-9,
        step=8.4e-3,
        step_request=32e-6,
        kv_token=55e-9,
        cpu_fetch=2.6e-6,
        storage_fetch=10.5e-6,
    ),
}
"""By the names that ``CostSettings.profile`` may have. Rooflines, from the models' shapes and the GPUs' data sheets; a
prompt of 12,000 tokens takes 70B 1.1 s. Each request of a step costs what a prompt's token does: its own products. A
token of 70B has 320 KB of KV, over four links to the CPU; one of 8B 128 KB, over one."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """``flops``: dense BF16 per second. ``bandwidth``: of its memory, bytes per second. From data sheets."""

    flops: float
    bandwidth: float


GPUS: Mapping[str, Gpu] = {
    "a100": Gpu(312e12, 2.04e12),  # 80 GB, SXM
    "h100": Gpu(989.5e12, 3.35e12),  # SXM
    "h200": Gpu(989.5e12, 4.8e12),
    "b200": Gpu(2250e12, 8.0e12),
    "l4": Gpu(121e12, 0.3e12),
    "l40s": Gpu(362e12, 0.864e12),
    "mi300x": Gpu(1307e12, 5.3e12),
}
"""By the names that ``CostSettings.gpu`` may have."""

VALUES = tuple(field.name for field in fields(Costs) if field.name != "fit")


def roofline(shape: Shape, gpu: Gpu, tensor_parallel: int) -> Costs:
    """What a model of ``shape`` costs on so many ``gpu``s."""
    flops = MFU * gpu.flops * tensor_parallel
    bandwidth = BANDWIDTH_REACHED * gpu.bandwidth
    # Each GPU has its share of the KV heads; where there are fewer of those, several have the same.
    kv_readers = min(tensor_parallel, shape.kv_heads)
    token = 2 * shape.active_parameters / flops
    overhead = shape.layers * (LAYER_OVERHEAD + (PARALLEL_OVERHEAD if tensor_parallel > 1 else 0))
    return Costs(
        prefill_token=token,
        prefill_quadratic=4 * shape.layers * shape.attention_width / flops,
        step=shape.read_bytes(BATCH) / (bandwidth * tensor_parallel) + overhead,
        step_request=token,
        kv_token=shape.kv_bytes / (bandwidth * kv_readers),
        cpu_fetch=shape.kv_bytes / (CPU_LINK * kv_readers),
        storage_fetch=shape.kv_bytes / STORAGE_LINK,
    )


def starting(levels: Sequence[CostSettings], shape: Callable[[], Shape | None]) -> Costs:
    """What ``levels`` say together, the nearest first: an endpoint's, its model's, the fleet's.

    A value is the nearest that is given, up to the first level that names a profile or a GPU: what is said further out
    is of other hardware. ``shape``: of the model's config.json, asked for only where a GPU is named; None: it is
    unknown, and the default profile stands for it.
    """
    given: dict[str, float] = {}
    base = Costs()
    for level in levels:
        given = {value: said for value in VALUES if (said := getattr(level, value)) is not None} | given
        if level.profile is not None:
            base = PROFILES[level.profile]
            break
        if level.gpu is not None:
            known = shape()
            base = Costs() if known is None else roofline(known, GPUS[level.gpu], level.tensor_parallel or 1)
            break
    fit = next((level.fit for level in levels if level.fit is not None), True)
    return Costs(**{value: given.get(value, getattr(base, value)) for value in VALUES}, fit=fit)
