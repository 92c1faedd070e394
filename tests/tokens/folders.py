"""Folders of tokenizers as models' repositories have them, with what each of the two ways makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from gateway.tokens.file_tokenizer import FileTokenizer, read_folder


def write_folder(folder: Path, tokenizer: Tokenizer | None = None, **files: Any) -> Path:
    """``files``: with ``__`` for the dot; JSON, or a text. A tokenizer_config.json is written unless it is None."""
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"))
    files = {"tokenizer_config__json": {"tokenizer_class": "PreTrainedTokenizerFast"}} | files
    for stem, content in files.items():
        if content is not None:
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / stem.replace("__", ".")).write_text(text)
    return folder


def by_library(folder: Path) -> Any:
    from transformers import AutoTokenizer  # imports for as long as all else here

    return AutoTokenizer.from_pretrained(str(folder))


def by_file(folder: Path) -> FileTokenizer:
    found = read_folder(str(folder))
    assert found is not None, "it is not known"
    return found


def state(tokenizer: Any) -> dict[str, Any]:
    """All that decides about ids."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    return backend | {"padding": None, "truncation": None}


def assert_same(folder: Path) -> FileTokenizer:
    """Both ways make the same of ``folder``. Returns ours."""
    ours, theirs = by_file(folder), by_library(folder)
    assert state(ours) == state(theirs)
    assert_same_words(ours, theirs)
    return ours


def assert_same_words(ours: FileTokenizer, theirs: Any) -> None:
    """Beside the ids, what templates see."""
    assert dict(ours.special_tokens_map) == theirs.special_tokens_map
    assert list(ours.special_tokens_map) == list(theirs.special_tokens_map)
    assert ours.all_special_tokens == theirs.all_special_tokens
    assert ours.split_special_tokens == theirs.split_special_tokens
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.chat_template == theirs.chat_template
    for tools in (None, []):
        try:
            wanted = theirs.get_chat_template(None, tools=tools)
        except ValueError:
            wanted = None
        try:
            found = ours.get_chat_template(None, tools=tools)
        except ValueError:
            found = None
        assert found == wanted
