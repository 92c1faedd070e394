"""Starting values of the cost model: profiles of known hardware, and a roofline over a model's shape.

    prefill_token     = 2 * active parameters / FLOPs          every parameter multiplies and adds once per token
    prefill_quadratic = 4 * layers * attention width / FLOPs   queries times keys, and weights times values
    kv_token          = KV bytes per token / bandwidth         a step reads the KV of each resident token
    step              = weight bytes / bandwidth + overhead    and all weights, once for the whole batch

FLOPs and bandwidth are those of ``tensor_parallel`` GPUs, times the share that is reached (``MFU``,
``BANDWIDTH_REACHED``). The results are within a tenth of the profiles, which come from the same formulas. Halving or
doubling all of it hardly changes a decision, so what the shape leaves out (sliding windows, layers without attention,
quantised arithmetic) is left to the fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.fleet.load.shape import ModelShape
from gateway.fleet.settings import CostSettings, StartingCosts

MFU = 0.45
"""Share of the peak FLOPs that a prefill reaches: BLIS's fit for vLLM on H100 (inference-sim/inference-sim)."""

BANDWIDTH_REACHED = 0.7
"""Share of the peak bandwidth that a decode step reaches: that of the profiles."""

LAYER_OVERHEAD = 62.5e-6
"""Seconds a layer adds to a step beside reading: kernels and the host's part. 2 ms for an 8B model's 32 layers."""

PARALLEL_OVERHEAD = 12.5e-6
"""Seconds more per layer if GPUs exchange results: 6 ms in all for a 70B model's 80 layers."""

BATCH = 16
"""Requests of the step by which a mixture of experts is rated: one request reads few experts, hundreds read all."""


CPU_LINK = 50e9
"""Bytes a second between one GPU and the CPU's memory: what PCIe 5 reaches."""

STORAGE_LINK = 12.5e9
"""Bytes a second between an engine and a store: 100 Gbit/s."""

PROFILES: Mapping[str, StartingCosts] = {
    # Llama 3 70B in BF16 on four H100: MFU 45 %, 35 ns per KV token, 15 ms to read the weights and 6 ms of overhead.
    "70b-tp4": StartingCosts(),
    # Llama 3 8B in BF16 on one H100: 6.4 ms to read the weights and 2 ms of overhead.
    "8b-h100": StartingCosts(
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

OWN = ("cpu_fetch", "storage_fetch", "step_tokens")
"""Values that a level may set by themselves: nothing that is measured corrects them."""


def roofline(shape: ModelShape, gpu: Gpu, tensor_parallel: int) -> StartingCosts:
    """What a model of ``shape`` costs on ``tensor_parallel`` GPUs."""
    flops = MFU * gpu.flops * tensor_parallel
    bandwidth = BANDWIDTH_REACHED * gpu.bandwidth
    # Each GPU has its share of the KV heads; if there are fewer heads than GPUs, several have the same.
    kv_readers = min(tensor_parallel, shape.kv_heads)
    token = 2 * shape.active_parameters / flops
    overhead = shape.layers * (LAYER_OVERHEAD + (PARALLEL_OVERHEAD if tensor_parallel > 1 else 0))
    return StartingCosts(
        prefill_token=token,
        prefill_quadratic=4 * shape.layers * shape.attention_width / flops,
        step=shape.read_bytes(BATCH) / (bandwidth * tensor_parallel) + overhead,
        step_request=token,
        kv_token=shape.kv_bytes / (bandwidth * kv_readers),
        cpu_fetch=shape.kv_bytes / (CPU_LINK * kv_readers),
        storage_fetch=shape.kv_bytes / STORAGE_LINK,
    )


def starting_costs(levels: Sequence[CostSettings], shape: Callable[[], ModelShape | None]) -> StartingCosts:
    """Combine ``levels``, the nearest first: an endpoint's, its model's, the fleet's.

    Of a value that several levels set, the nearest counts, up to the first level that names a profile or a GPU: levels
    beyond it describe other hardware. ``shape``: gives that of the model's config.json, called only if a GPU is named;
    None: it is unknown, and the default profile is used.
    """
    given: dict[str, Any] = {}
    base = StartingCosts()
    for level in levels:
        given = {name: value for name in OWN if (value := getattr(level, name)) is not None} | given
        if level.profile is not None:
            base = PROFILES[level.profile]
            break
        if level.gpu is not None:
            known = shape()
            base = StartingCosts() if known is None else roofline(known, GPUS[level.gpu], level.tensor_parallel or 1)
            break
    if (fit := next((level.fit for level in levels if level.fit is not None), None)) is not None:
        given["fit"] = fit
    return replace(base, **given)
