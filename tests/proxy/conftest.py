"""Two tokenizers that differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.tokenizer import build_tokenizer


@pytest.fixture(scope="session")
def folders(tokenizer: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two tokenizers that differ in the ids of any text."""
    return Path(tokenizer), build_tokenizer(tmp_path_factory.mktemp("other"), vocabulary=512)
