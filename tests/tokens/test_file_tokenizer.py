from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors

from gateway.tokens.file_tokenizer import FileTokenizer, read_folder
from tests.support.examples import examples
from tests.tokens.folders import assert_same, assert_same_words, by_file, by_library, write_folder
from tests.tokens.shapes import CUT, PIECES, QWEN, UNCUT, byte_level, raw, shape, text_of, with_tokens

SHAPES = sorted({*CUT, *UNCUT} - {"dropout"})

QWEN_CONFIG = {
    "tokenizer_class": "Qwen2Tokenizer",
    "add_prefix_space": False,
    "add_bos_token": False,
    "bos_token": None,
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "unk_token": None,
    "errors": "replace",
    "split_special_tokens": False,
}


def qwen(*more: AddedToken) -> Tokenizer:
    """As Qwen's repositories have it."""
    tokenizer = byte_level(QWEN, normalizers.NFC())
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    with_tokens(tokenizer, raw("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    return with_tokens(tokenizer, [*more, AddedToken("<tool_call>", special=False, normalized=False)])


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[FileTokenizer, Any]]:
    """Each shape as we read it, and as the library does."""
    found = {}
    for name in SHAPES:
        folder = write_folder(tmp_path_factory.mktemp(name), shape(name))
        found[name] = by_file(folder), by_library(folder)
    folder = write_folder(tmp_path_factory.mktemp("qwen2"), qwen(), tokenizer_config__json=QWEN_CONFIG)
    found["qwen2"] = by_file(folder), by_library(folder)
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_each_shape_is_read_as_the_library_reads_it(name: str, tmp_path: Path) -> None:
    assert_same(write_folder(tmp_path, shape(name)))


def test_the_simulators_folder_is_read_as_the_library_reads_it(folder: Path) -> None:
    assert_same(folder)


@pytest.mark.parametrize("name", [*SHAPES, "qwen2"])
@given(picks=st.binary(max_size=40), added=st.booleans())
@example(picks=bytes(range(len(PIECES))), added=True)
@examples(20)
def test_texts_have_the_same_ids(pairs: Any, name: str, picks: bytes, added: bool) -> None:
    ours, theirs = pairs[name]
    text = text_of(picks)
    wanted = theirs(text, add_special_tokens=added)["input_ids"]
    assert ours(text, add_special_tokens=added)["input_ids"] == wanted


def test_what_a_file_says_of_length_counts_for_neither(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(shape("llama3").to_str())
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    folder = write_folder(tmp_path, tokenizer)
    ours, theirs = by_file(folder), by_library(folder)
    text = "one two three four five six"
    wanted = theirs(text, add_special_tokens=True)["input_ids"]
    assert ours(text, add_special_tokens=True)["input_ids"] == wanted
    assert len(wanted) > 3


@pytest.mark.parametrize(
    ("kind", "named"), [("", "Qwen2Tokenizer"), ("qwen3_moe", "Qwen2TokenizerFast"), ("qwen2", "TokenizersBackend")]
)
@pytest.mark.parametrize("more", [{}, {"unk_token": "<|endoftext|>"}, {"bos_token": "<|im_start|>"}])
def test_qwens_files_say_what_the_librarys_class_builds(tmp_path: Path, kind: str, named: str, more: Any) -> None:
    config = QWEN_CONFIG | {"tokenizer_class": named} | more
    files = {"config__json": {"model_type": kind}} if kind else {}
    folder = write_folder(tmp_path, qwen(), tokenizer_config__json=config, **files)
    ours, theirs = by_file(folder), by_library(folder)
    assert type(theirs).__name__ == "Qwen2Tokenizer"
    assert_same_words(ours, theirs)
    assert ours.backend_tokenizer.get_added_tokens_decoder() == theirs.backend_tokenizer.get_added_tokens_decoder()


def unlike_qwen() -> dict[str, Tokenizer]:
    without_end = with_tokens(byte_level(QWEN, normalizers.NFC()), raw("<|im_start|>", "<|im_end|>"))
    return {
        "other words": shape("llama3"),
        "no normalizer": with_tokens(byte_level(QWEN), raw("<|endoftext|>", "<|im_start|>", "<|im_end|>")),
        "a token that takes blanks": with_tokens(
            byte_level(QWEN, normalizers.NFC()), [*raw("<|endoftext|>", rstrip=True), *raw("<|im_end|>")]
        ),
        "without the default tokens": without_end,
    }


@pytest.mark.parametrize("name", unlike_qwen())
def test_what_the_librarys_class_would_build_otherwise_is_left_to_it(tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path, unlike_qwen()[name], tokenizer_config__json=QWEN_CONFIG)
    assert read_folder(str(folder)) is None


IMPORTED = """
import sys
from gateway.tokens.loading import load
from gateway.tokens.settings import TokenSettings

loaded = load(TokenSettings(tokenizer=sys.argv[1]), "m")
assert loaded.tokenizer("Hello", add_special_tokens=False)["input_ids"]
print(*sorted({name.partition(".")[0] for name in sys.modules} & {"transformers", "huggingface_hub", "torch"}))
"""


def test_a_folder_is_read_without_the_library(folder: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTED, str(folder)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, ""), ended.stderr
