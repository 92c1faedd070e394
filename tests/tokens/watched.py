"""What an encoder gives to the library."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.tokens.encode import Encoder


def watched(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that ``encoder`` has the library encode from now on, as they come."""
    backend, encoded = encoder._backend, list[str]()

    class Watched:
        def encode_batch_fast(self, texts: list[str], **how: Any) -> Any:
            encoded.extend(texts)
            return backend.encode_batch_fast(texts, **how)

    monkeypatch.setattr(encoder, "_backend", Watched())
    return encoded
