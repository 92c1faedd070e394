from __future__ import annotations

import importlib
import os
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gateway.tokens.encode import TAILS, Encoder
from gateway.tokens.segments import LEAST
from tests.tokens.watched import watched


@pytest.fixture(scope="module")
def library() -> Any:
    """``transformers``: not imported with this file, since its import takes as long as that of all others' tests."""
    return importlib.import_module("transformers")


@pytest.fixture(scope="module")
def whole(library: Any, folder: Path) -> Any:
    return library.AutoTokenizer.from_pretrained(str(folder))


@pytest.fixture(scope="module")
def encoder(whole: Any) -> Encoder:
    return Encoder(whole, "m")


@given(st.text(max_size=60), st.booleans())
def test_the_ids_are_the_whole_tokenizers(whole: Any, encoder: Encoder, text: str, special: bool) -> None:
    if any("\ud800" <= char <= "\udfff" for char in text):
        return
    assert encoder._backend is not None
    (ids,) = encoder.encode([text], add_special_tokens=special)
    assert ids == array("I", whole(text, add_special_tokens=special)["input_ids"])
    assert ids.itemsize == 4


def test_the_end_that_chats_have_in_common_is_encoded_once(whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder(whole, "m", memory_bytes=1 << 20)
    encoded = watched(encoder, monkeypatch)
    end = "<|im_end|>\n<|im_start|>assistant\n"
    for number in range(3 * TAILS):
        text = f"<|im_start|>user\nquestion {number} " + "x" * LEAST + end
        for _ in range(2):
            (ids,) = encoder.encode([text], add_special_tokens=False)
            assert ids == array("I", whole(text, add_special_tokens=False)["input_ids"])
        encoder.encode([f"a short text {number}"], add_special_tokens=False)
        assert len(encoder._tails) <= TAILS
    assert encoded.count(end) <= 4, "others push it out now and then"
    assert len(encoded) == len(set(encoded)) + encoded.count(end) - 1, "nothing else is encoded twice"


def test_special_tokens_in_a_text_are_tokens(encoder: Encoder, whole: Any) -> None:
    (ids,) = encoder.encode(["<|im_start|>a<|im_end|>"], add_special_tokens=False)
    assert ids[0] == whole.convert_tokens_to_ids("<|im_start|>")
    assert ids[-1] == whole.convert_tokens_to_ids("<|im_end|>")


def test_a_truncation_in_the_file_is_not_applied(library: Any, folder: Path, tmp_path: Path) -> None:
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    encoder = Encoder(library.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<|endoftext|>"), "m")
    (ids,) = encoder.encode(["many words of a long text"], add_special_tokens=False)
    assert encoder._backend is not None
    assert len(ids) > 8


def test_a_tokenizer_written_in_python_is_used_whole(library: Any, caplog: pytest.LogCaptureFixture) -> None:
    encoder = Encoder(library.ByT5Tokenizer(), "slow-model")
    assert encoder._backend is None
    assert "slow-model" in caplog.text
    assert encoder.encode(["hi", "a"], add_special_tokens=True) == [array("I", [107, 108, 1]), array("I", [100, 1])]
    assert encoder.encode(["hi"], add_special_tokens=False) == [array("I", [107, 108])]


def test_a_tokenizer_that_changes_text_in_python_is_used_whole(
    library: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Shouting(library.PreTrainedTokenizerFast):
        """Changes text before its backend sees it, as some models' own classes do."""

        def __call__(self, text: Any, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(text.upper(), *args, **kwargs)

    tokenizer = Shouting(tokenizer_file=str(folder / "tokenizer.json"))
    encoder = Encoder(tokenizer, "loud-model")
    assert encoder._backend is None
    assert "loud-model" in caplog.text
    (ids,) = encoder.encode(["hi"], add_special_tokens=False)
    assert ids == array("I", tokenizer("hi", add_special_tokens=False)["input_ids"])


def test_the_librarys_own_threads_are_never_started() -> None:
    """Nobody waits in their queue, whatever the environment asks for. In a process of its own, where none are yet, and
    which has begun as the command does."""
    program = """
import contextlib, os
from gateway.cli import main
with contextlib.suppress(SystemExit):
    main(["--version"])
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from gateway.tokens.encode import TAILS, Encoder
from gateway.tokens.segments import LEAST
tokenizer = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.add_tokens([AddedToken("<s>", normalized=False)])
threads = len(os.listdir("/proc/self/task"))
for memory in (0, 1 << 20):
    encoder = Encoder(PreTrainedTokenizerFast(tokenizer_object=tokenizer), "m", memory_bytes=memory)
    encoder.encode(["a b " * 1000 + "<s>"] * 4 + [f"<s>{n} a b " * 1000 for n in range(40)], add_special_tokens=False)
    print(len(os.listdir("/proc/self/task")) - threads)
"""
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "true"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:] == ["0", "0"], "with and without a memory"
