"""The built tokenizer is one that transformers loads, and both say the same ids."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.tokenizer import BOS, ByteWords, FileWords, build_tokenizer, load_words
from tests.support.examples import examples


@pytest.mark.parametrize("text", ["hello", "<|im_start|>user\nwhat is it?<|im_end|>\n", "你好 😀\x00\n", ""])
@pytest.mark.parametrize("special", [True, False])
def test_ids_equal_those_of_transformers(folder: Path, reference: Any, text: str, special: bool) -> None:
    words = FileWords(folder)
    assert words.encode(text, special) == reference(text, add_special_tokens=special)["input_ids"]
    assert words.eos == reference.eos_token_id
    assert words.size == len(reference)


def test_text_has_a_bos_only_with_special_tokens(folder: Path, reference: Any) -> None:
    bos = reference.convert_tokens_to_ids(BOS)
    assert FileWords(folder).encode("hello", True)[0] == bos
    assert bos not in FileWords(folder).encode("hello", False)


def test_building_twice_gives_the_same_files(folder: Path, tmp_path: Path) -> None:
    again = build_tokenizer(tmp_path / "deep" / "again")
    names = {path.name for path in folder.iterdir()}
    assert names == {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"}
    assert all((again / name).read_bytes() == (folder / name).read_bytes() for name in names)


def test_another_process_builds_the_same(folder: Path, tmp_path: Path) -> None:
    code = f"from simulator.tokenizer import build_tokenizer; build_tokenizer({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("vocabulary", [511, 2049])
def test_a_vocabulary_out_of_range_is_refused(tmp_path: Path, vocabulary: int) -> None:
    with pytest.raises(ValueError, match="512"):
        build_tokenizer(tmp_path, vocabulary)


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no tokenizer\.json"):
        load_words(str(tmp_path))


@pytest.mark.parametrize("kind", ["bytes", "file"])
def test_pieces_are_text_that_decodes_to_itself(folder: Path, kind: str) -> None:
    words = ByteWords() if kind == "bytes" else FileWords(folder)
    some = words.pieces[:50]
    assert len(words.pieces) > 20
    assert words.decode([token for token, _ in some]) == "".join(text for _, text in some)


@examples(60)
@given(st.lists(st.one_of(st.text(max_size=8), st.sampled_from(["<|im_start|>", "<|im_end|>"])), max_size=8))
def test_bytes_are_one_token_each_and_come_back(parts: list[str]) -> None:
    words = ByteWords()
    text = "".join(parts)
    ids = words.encode(text, add_special_tokens=False)
    plain = text.replace("<|im_start|>", "").replace("<|im_end|>", "")
    assert words.decode(ids) == plain
    assert all(0 <= token < words.size for token in ids)


def test_bytes_refuse_nothing_that_json_can_hold() -> None:
    assert ByteWords().encode("\ud800", False) == [ord("?")]
