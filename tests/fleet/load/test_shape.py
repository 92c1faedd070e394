"""Configurations as their models' repositories have them, less what says nothing of sizes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.load.shape import find_shape, read_shape

LLAMA_70B = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
QWEN3_30B_A3B = {
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "vocab_size": 151936,
}
DEEPSEEK_V3 = {
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {"quant_method": "fp8"},
    "v_head_dim": 128,
    "vocab_size": 129280,
}


@pytest.mark.parametrize(
    ("config", "total", "active", "kv_bytes"),
    [
        # Billions of parameters by the models' cards, less the tables of embeddings, and of those in use
        # the last layer too; bytes of KV a token.
        (LLAMA_70B, 69.5, 68.4, 327_680),
        (LLAMA_8B, 7.5, 7.0, 131_072),
        (QWEN3_30B_A3B, 30.2, 2.7, 98_304),
        (DEEPSEEK_V3, 670, 37, 61 * 576 * 2),
    ],
)
def test_known_models(config, total, active, kv_bytes):
    shape = read_shape(config)
    assert shape is not None
    assert (shape.always_parameters + shape.head_parameters + shape.expert_parameters) / 1e9 == pytest.approx(
        total, rel=0.02
    )
    assert shape.active_parameters / 1e9 == pytest.approx(active, rel=0.06)
    assert shape.kv_bytes == kv_bytes


def test_a_step_reads_all_weights_of_a_dense_model_and_few_experts_for_few_requests():
    dense, sparse = read_shape(LLAMA_8B), read_shape(QWEN3_30B_A3B)
    assert dense is not None
    assert sparse is not None
    assert dense.read_bytes(1) == dense.read_bytes(100) == pytest.approx(15e9, rel=0.02)
    assert sparse.read_bytes(1) < 8e9 < sparse.read_bytes(16) < 45e9 < sparse.read_bytes(500)


@pytest.mark.parametrize(
    ("quantization", "factor"),
    [
        ({"quant_method": "fp8"}, 0.5),
        ({"quant_method": "gptq", "bits": 4}, 0.25),
        ({"quant_method": "bitsandbytes", "bits": "?"}, 0.25),
        ({"quant_method": "new"}, 1),
        ("x", 1),
    ],
)
def test_quantised_weights_are_read_sooner(quantization, factor):
    plain, quantised = (
        read_shape(LLAMA_8B | {"vocab_size": 0}),
        read_shape(LLAMA_8B | {"vocab_size": 0, "quantization_config": quantization}),
    )
    assert plain is not None
    assert quantised is not None
    assert quantised.read_bytes(1) == pytest.approx(factor * plain.read_bytes(1))


def test_of_a_model_with_eyes_the_text_part():
    assert read_shape({"text_config": LLAMA_8B, "vision_config": {"hidden_size": 1}}) == read_shape(LLAMA_8B)


@pytest.mark.parametrize("lacking", ["hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_sizes_that_are_missing(lacking):
    assert read_shape({name: size for name, size in LLAMA_8B.items() if name != lacking}) is None
    assert read_shape(LLAMA_8B | {lacking: 0}) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(st.dictionaries(st.sampled_from([*DEEPSEEK_V3, *QWEN3_30B_A3B, "text_config"]), JSON | st.integers(0, 20)))
def test_whatever_is_in_the_file_it_is_read_or_refused(config):
    shape = read_shape(config)
    if shape is not None:
        assert shape.active_parameters >= 0
        assert shape.read_bytes(16) >= 0
        assert shape.kv_bytes >= 0
        assert shape.kv_heads >= 1


@pytest.mark.parametrize("content", ["", "[]", "{", '{"hidden_size": 8}', "\xff"])
def test_a_folder_whose_file_tells_nothing(tmp_path, content):
    assert find_shape(str(tmp_path)) is None
    (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    assert find_shape(str(tmp_path)) is None


def test_a_local_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    assert find_shape(str(tmp_path)) == read_shape(LLAMA_8B)


def test_a_hub_id_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert find_shape("some/model") is None
    assert find_shape("no hub/id at all/") is None
    repository = tmp_path / "models--some--model"
    snapshot = repository / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    (snapshot / "config.json").write_text(json.dumps(LLAMA_8B))
    assert find_shape("some/model") == read_shape(LLAMA_8B)
    assert find_shape("some/model", "a" * 40) == read_shape(LLAMA_8B)
    assert find_shape("some/model", "other") is None
