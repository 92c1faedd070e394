"""A model's sizes that determine what its work costs, read from the config.json beside its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NUMBER_BYTES = 2
"""Of a weight or a KV value by default: BF16."""

WEIGHT_BYTES = {"fp8": 1.0, "compressed-tensors": 1.0, "awq": 0.5, "gptq": 0.5, "mxfp4": 0.5, "bitsandbytes": 0.5}
"""Of one weight, by ``quantization_config.quant_method``."""

LARGEST = 10**9
"""The largest size that is accepted: beyond every model's, so that a broken file gives no absurd cost."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """``attention_width``: query heads times their size, the mean of keys' and values'. ``kv_heads``: over how many
    GPUs a token's KV can be divided. ``kv_bytes``: of one token, in all layers. ``always_parameters``: that each token
    is multiplied with; ``expert_parameters``: of which ``experts`` are ``experts_used`` at a time. ``head_parameters``:
    of the last layer, which is read in each step but computed for a prompt's last token only."""

    layers: int
    attention_width: int
    kv_heads: int
    kv_bytes: float
    always_parameters: float
    head_parameters: float
    expert_parameters: float = 0.0
    experts: int = 1
    experts_used: int = 1
    weight_bytes: float = NUMBER_BYTES

    @property
    def active_parameters(self) -> float:
        """That a prompt's token is multiplied with."""
        return self.always_parameters + self.expert_parameters * self.experts_used / self.experts

    def read_bytes(self, batch: int) -> float:
        """That a decode step of ``batch`` requests reads of the weights: of the experts, those that any of them uses,
        if each takes its own by chance."""
        used = 1 - (1 - self.experts_used / self.experts) ** batch
        weights = self.always_parameters + self.expert_parameters * used
        return weights * self.weight_bytes + self.head_parameters * NUMBER_BYTES


def find_shape(model: str, revision: str | None = None) -> ModelShape | None:
    """The shape of the model in a local folder, or of a hub id in the hub's cache. Uses no network.

    None: there is no config.json, or it lacks a size.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        path = folder / "config.json"
    else:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            cached = try_to_load_from_cache(model, "config.json", revision=revision)
        except HFValidationError:  # no hub id
            return None
        if not isinstance(cached, str):
            return None
        path = Path(cached)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return read_shape(content)


def read_shape(content: object) -> ModelShape | None:
    """From a parsed config.json; None if it lacks a size. Of a multimodal model: its text part."""
    if not isinstance(content, Mapping):
        return None
    inner = content.get("text_config")
    config: Mapping[str, Any] = inner if isinstance(inner, Mapping) else content
    try:
        return _shape(config, _weight_bytes(content))
    except _MissingSize:
        return None


class _MissingSize(Exception):
    """A size is missing."""


def _size(config: Mapping[str, Any], *names: str, otherwise: int | None = None) -> int:
    for name in names:
        value = config.get(name)
        if type(value) is int and 0 <= value <= LARGEST:
            return value
    if otherwise is None:
        raise _MissingSize
    return otherwise


def _shape(config: Mapping[str, Any], weight_bytes: float) -> ModelShape:
    hidden = _size(config, "hidden_size", "n_embd", "d_model")
    layers = _size(config, "num_hidden_layers", "n_layer", "num_layers")
    heads = _size(config, "num_attention_heads", "n_head", "num_heads")
    if not (hidden and layers and heads):
        raise _MissingSize
    kv_heads = _size(config, "num_key_value_heads", otherwise=heads) or heads
    head = _size(config, "head_dim", otherwise=hidden // heads) or hidden // heads
    rank = _size(config, "kv_lora_rank", otherwise=0)
    if rank:  # latent attention: one small vector a token, which all heads share
        rope = _size(config, "qk_rope_head_dim", otherwise=0)
        key = _size(config, "qk_nope_head_dim", otherwise=head) + rope
        value = _size(config, "v_head_dim", otherwise=head)
        queries = _size(config, "q_lora_rank", otherwise=0)
        query = queries * (hidden + heads * key) if queries else hidden * heads * key
        attention = query + hidden * (rank + rope) + rank * heads * (key - rope + value) + heads * value * hidden
        width, kv_numbers, kv_heads = heads * (key + value) // 2, rank + rope, 1
    else:
        attention = 2 * hidden * heads * head + 2 * hidden * kv_heads * head
        width, kv_numbers = heads * head, 2 * kv_heads * head
    dense, experts = _feed_forward(config, hidden, layers)
    count = max(1, _experts(config))
    return ModelShape(
        layers=layers,
        attention_width=width,
        kv_heads=kv_heads,
        kv_bytes=layers * kv_numbers * NUMBER_BYTES,
        always_parameters=layers * attention + dense,
        head_parameters=hidden * _size(config, "vocab_size", otherwise=0),
        expert_parameters=experts,
        experts=count,
        experts_used=min(count, max(1, _size(config, "num_experts_per_tok", "moe_topk", otherwise=1))),
        weight_bytes=weight_bytes,
    )


def _experts(config: Mapping[str, Any]) -> int:
    return _size(config, "num_experts", "num_local_experts", "n_routed_experts", otherwise=0)


def _feed_forward(config: Mapping[str, Any], hidden: int, layers: int) -> tuple[int, int]:
    """Parameters behind the attention that every token uses, and those of experts, in all layers."""
    gated = 3 * hidden  # gate, up and down
    inner = _size(config, "intermediate_size", "n_inner", "ffn_dim", otherwise=4 * hidden)
    count = _experts(config)
    if not count:
        return layers * gated * inner, 0
    expert = _size(config, "moe_intermediate_size", otherwise=inner)
    shared = _size(config, "shared_expert_intermediate_size", otherwise=0)
    shared += _size(config, "n_shared_experts", otherwise=0) * expert
    plain = min(layers, _size(config, "first_k_dense_replace", otherwise=0))
    sparse = layers - plain
    return gated * (plain * inner + sparse * shared), gated * sparse * count * expert


def _weight_bytes(content: Mapping[str, Any]) -> float:
    quantised = content.get("quantization_config")
    method = quantised.get("quant_method") if isinstance(quantised, Mapping) else None
    bits = quantised.get("bits") if isinstance(quantised, Mapping) else None
    if type(bits) is int and bits in (2, 3, 4, 8):
        return bits / 8
    return WEIGHT_BYTES.get(method, NUMBER_BYTES) if isinstance(method, str) else NUMBER_BYTES
