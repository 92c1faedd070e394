"""What is taken for known is what the installed ``transformers`` makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.tokens.file_rules import (
    LLAMA_CLASSES,
    PLAIN_CLASSES,
    QWEN_CLASSES,
    QWEN_PATTERN,
    TYPES,
    NotKnown,
    examine,
)
from gateway.tokens.file_tokenizer import read_folder
from tests.tokens.folders import assert_same, write_folder
from tests.tokens.shapes import QWEN, shape


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("llama"), shape("llama3"))


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], str]:
    """The name of the class that the library chooses for a folder, without loading it."""
    from transformers import AutoTokenizer, TokenizersBackend

    monkeypatch.setattr(TokenizersBackend, "from_pretrained", classmethod(lambda cls, *_, **__: cls))
    return lambda folder: str(AutoTokenizer.from_pretrained(str(folder)).__name__)


@pytest.mark.parametrize("named", sorted(PLAIN_CLASSES | LLAMA_CLASSES | QWEN_CLASSES))
def test_the_library_chooses_the_class_that_is_expected_for_each_type(named, llama, tmp_path, chosen):
    (tmp_path / "tokenizer.json").write_bytes((llama / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": named}))
    seen = 0
    for kind in sorted(TYPES):
        if kind:
            (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        try:
            built = examine(tmp_path).built
        except NotKnown:  # for Qwen the steps are looked at, too, which are Llama's here
            built = named in QWEN_CLASSES or kind == "qwen2"
            if kind not in TYPES or (named in QWEN_CLASSES and "qwen" not in kind and kind):
                continue
        assert chosen(tmp_path) == ("Qwen2Tokenizer" if built else "TokenizersBackend"), kind
        seen += 1
    assert seen >= 10


def test_qwens_steps_are_those_of_the_librarys_class():
    import transformers

    assert transformers.models.qwen2.tokenization_qwen2.PRETOKENIZE_REGEX == QWEN_PATTERN == QWEN


CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<|eot|>"}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"bos_token": None},
        {"add_bos_token": False, "add_eos_token": True, "clean_up_tokenization_spaces": True, "legacy": False},
        {"extra_special_tokens": ["<|user|>", "<|im_start|>"]},
        {"additional_special_tokens": ["<|user|>", {"__type": "AddedToken", "content": "<|im_end|>"}]},
        {"extra_special_tokens": {"image_token": "<|user|>"}},
        {"image_token": "<|user|>", "pad_token": "<|eot|>"},
        {"split_special_tokens": True},
        {"add_prefix_space": False},
        {"do_lower_case": False, "remove_space": False},
        {"chat_template": "{{ messages }}"},
        {"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]},
        {"chat_template": [{"name": "rag", "template": "a"}]},
        {"bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": False, "normalized": False}},
        {"tokenizer_class": "LlamaTokenizerFast"},
        {"tokenizer_class": "TokenizersBackend", "model_max_length": 10, "padding_side": "left"},
    ],
)
def test_what_is_known_is_the_same(llama, tmp_path, more):
    (tmp_path / "tokenizer.json").write_bytes((llama / "tokenizer.json").read_bytes())
    assert_same(write_folder(tmp_path, tokenizer_config__json=CONFIG | more))


def test_a_template_of_its_own_goes_first(llama, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((llama / "tokenizer.json").read_bytes())
    files: dict[str, Any] = {"tokenizer_config__json": CONFIG | {"chat_template": "old"}}
    found = assert_same(write_folder(tmp_path, chat_template__jinja="caf\u00e9\r\n{{ messages }}\n", **files))
    assert found.chat_template == "caf\u00e9\n{{ messages }}\n"


def test_an_older_map_of_special_tokens_that_says_the_same(llama, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((llama / "tokenizer.json").read_bytes())
    older = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "<|eot|>"}
    assert_same(write_folder(tmp_path, tokenizer_config__json=CONFIG, special_tokens_map__json=older))


def test_added_tokens_that_are_said_twice(llama, tmp_path):
    data = (llama / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(data)
    said = {str(token.pop("id")): token for token in json.loads(data)["added_tokens"]}
    assert_same(write_folder(tmp_path, tokenizer_config__json=CONFIG | {"added_tokens_decoder": said}))


def decoder(**changes: Any) -> dict[str, Any]:
    """Of tokens that tokenizer.json does not have so."""
    token = {"content": "<s>", "lstrip": False, "normalized": False, "rstrip": False, "special": True}
    return {"added_tokens_decoder": {"1": token | {"single_word": False} | changes}}


@pytest.mark.parametrize(
    "more",
    [
        {"tokenizer_class": None},
        {"tokenizer_class": "GemmaTokenizer"},
        {"tokenizer_class": "Qwen2Tokenizer"},
        {"auto_map": {"AutoTokenizer": [None, "own.Own"]}},
        {"fix_mistral_regex": True},
        {"unheard_of": 1},
        {"bos_token": "<bos>"},
        {"bos_token": {"content": "<s>"}},
        {"bos_token": 5},
        {"extra_special_tokens": ["<other>"]},
        {"extra_special_tokens": 5},
        {"image_token": "<other>"},
        {"add_prefix_space": True},
        {"do_lower_case": True},
        {"split_special_tokens": "yes"},
        {"chat_template": 5},
        {"chat_template": [{"name": "default"}]},
        decoder(),
        decoder(lstrip=True),
        {"added_tokens_decoder": {"x": {}}},
    ],
)
def test_what_is_not_known_is_left_to_the_library(llama, tmp_path, more):
    (tmp_path / "tokenizer.json").write_bytes((llama / "tokenizer.json").read_bytes())
    assert read_folder(str(write_folder(tmp_path, tokenizer_config__json=CONFIG | more))) is None


@pytest.mark.parametrize(
    "files",
    [
        {"added_tokens__json": {"x": 5000}},
        {"special_tokens_map__json": {"bos_token": "<|eot|>"}},
        {"special_tokens_map__json": {"pad_token": "<|eot|>"}},
        {"special_tokens_map__json": "{broken"},
        {"config__json": {"model_type": "mistral"}},
        {"config__json": {"model_type": "unheard-of"}},
        {"config__json": {"model_type": 5}},
        {"config__json": "[]"},
        {"config__json": "{broken"},
        {"tokenizer_config__json": "{broken"},
        {"tokenizer__json": "{broken"},
        {"tokenizer__json": '{"added_tokens": [], "model": {}}'},
    ],
)
def test_folders_that_are_not_known_are_left_to_the_library(llama, tmp_path, files):
    (tmp_path / "tokenizer.json").write_bytes((llama / "tokenizer.json").read_bytes())
    assert read_folder(str(write_folder(tmp_path, **{"tokenizer_config__json": CONFIG} | files))) is None


def test_a_folder_with_several_templates_or_without_files_is_left_to_the_library(llama, tmp_path):
    assert read_folder(str(tmp_path)) is None
    (tmp_path / "tokenizer.json").write_bytes((llama / "tokenizer.json").read_bytes())
    assert read_folder(str(tmp_path)) is None
    write_folder(tmp_path, tokenizer_config__json=CONFIG)
    assert read_folder(str(tmp_path)) is not None
    (tmp_path / "additional_chat_templates").mkdir()
    assert read_folder(str(tmp_path)) is None


def test_a_class_of_llama_that_builds_another_tokenizer_is_left_to_the_library(tmp_path):
    config = {"tokenizer_class": "LlamaTokenizer"}
    assert read_folder(str(write_folder(tmp_path, shape("llama2"), tokenizer_config__json=config))) is None
