"""A small ``tekken.json``."""

from __future__ import annotations

import base64
import json
from pathlib import Path

PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
MERGED = (" t", "he", " the", "er", "in", " w", "ea", "th", " weather", "weath", " is", "is", "ation", " P", "Paris")
SPECIAL = 1000
"""Ids before the vocabulary's, as in all such files."""


def build_tekken(folder: Path, version: str = "v7") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [bytes([value]) for value in range(256)] + [piece.encode() for piece in MERGED]
    vocabulary = [
        {"rank": rank, "token_bytes": base64.b64encode(piece).decode(), "token_str": piece.decode("utf-8", "replace")}
        for rank, piece in enumerate(pieces)
    ]
    config = {
        "pattern": PATTERN,
        "num_vocab_tokens": len(vocabulary),
        "default_vocab_size": len(vocabulary) + SPECIAL,
        "default_num_special_tokens": SPECIAL,
        "version": version,
    }
    (folder / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocabulary, "version": 1}))
    (folder / "config.json").write_text(json.dumps({"model_type": "mistral", "architectures": ["MistralForCausalLM"]}))
    return folder
