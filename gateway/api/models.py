"""``GET /v1/models`` and ``GET /v1/models/{id}``, in OpenAI's shape with the fields that vLLM adds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One id that a client may name: a model, an alias (``root`` is the model's name) or an adapter (``parent`` is).

    ``created``: seconds since the epoch. ``max_model_len``: tokens; None if no engine told.
    """

    id: str
    created: int
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None
    owned_by: str = "kvgate"


_ENCODER = msgspec.json.Encoder()


def listing(entries: Iterable[ModelEntry]) -> bytes:
    """The body of the list, in the order given."""
    return _ENCODER.encode({"object": "list", "data": [_shape(entry) for entry in entries]})


def one(entry: ModelEntry) -> bytes:
    """The body of a single model."""
    return _ENCODER.encode(_shape(entry))


def _shape(entry: ModelEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "object": "model",
        "created": entry.created,
        "owned_by": entry.owned_by,
        "root": entry.root if entry.root is not None else entry.id,
        "parent": entry.parent,
        "max_model_len": entry.max_model_len,
    }
