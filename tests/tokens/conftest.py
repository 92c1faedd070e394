from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.core.observer import Observer
from gateway.tokens.settings import TokenSettings
from gateway.tokens.tokenizer import ModelTokens
from simulator.tokenizer import build_tokenizer

Load = Callable[..., Awaitable[ModelTokens]]


class Reasons(Observer):
    """Keeps the reasons of estimates."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def tokens_estimated(self, model: str, why: str) -> None:
        self.seen.append((model, why))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE tokenizer with ChatML's template and a BOS that only plain text gets."""
    return build_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def variant(folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """The same tokenizer with files added, changed or (None) removed; a dict is merged into a JSON file."""

    def make(**files: Any) -> Path:
        copy = tmp_path / "variant"
        copy.mkdir()
        for file in folder.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        for stem, content in files.items():
            name = stem.replace("__", ".")
            path = copy / name
            if content is None:
                path.unlink()
            elif isinstance(content, dict):
                old = json.loads(path.read_text()) if path.exists() else {}
                path.write_text(json.dumps(old | content))
            else:
                path.write_text(content)
        return copy

    return make


@pytest.fixture
def reasons() -> Reasons:
    return Reasons()


@pytest.fixture
def load(folder: Path, reasons: Reasons) -> Load:
    """A loaded model; keywords are its settings, the tokenizer's folder is the default."""

    async def loaded(**settings: Any) -> ModelTokens:
        tokens = ModelTokens(TokenSettings(**{"tokenizer": str(folder), **settings}), "m", reasons)
        await tokens.load()
        return tokens

    return loaded
