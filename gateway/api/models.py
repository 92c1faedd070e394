"""``GET /v1/models`` and ``GET /v1/models/{id}``, in OpenAI's shape with the fields that vLLM adds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

OWNER = "kvgate"

_ENCODER = msgspec.json.Encoder()


def listing(entries: Iterable[Mapping[str, Any]]) -> bytes:
    """The body of the list, in the order given.

    Each entry has an ``id``, and may have ``root``, ``parent`` (of an adapter), ``max_model_len`` (tokens) and
    ``created`` (seconds since the epoch).
    """
    return _ENCODER.encode({"object": "list", "data": [_shape(entry) for entry in entries]})


def one(entry: Mapping[str, Any]) -> bytes:
    """The body of a single model; ``entry`` as in ``listing``."""
    return _ENCODER.encode(_shape(entry))


def _shape(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": entry["id"],
        "object": "model",
        "created": entry.get(
            "created", 0
        ),  # clients expect an integer; the time at which an engine loaded it does not matter
        "owned_by": OWNER,
        "root": entry.get("root") or entry["id"],
        "parent": entry.get("parent"),
        "max_model_len": entry.get("max_model_len"),
    }
