"""The kinds of knowledge that the index keeps of an endpoint, each in a column of its own."""

from __future__ import annotations

from enum import IntEnum


class Layer(IntEnum):
    """An endpoint's column of a layer is its first column, the GPU's, plus this number."""

    GPU = 0
    CPU = 1
    STORAGE = 2
    PREDICTED = 3
    APPROXIMATE = 4


LAYERS = len(Layer)

PREDICTED = int(Layer.PREDICTED)
"""As a plain integer: to add an enum's member takes as long as a call."""

TIERS = {tier.name: tier for tier in (Layer.GPU, Layer.CPU, Layer.STORAGE)}


def tier_of(medium: str | None) -> Layer | None:
    """The tier of an event's ``medium``, in upper or lower case; None: unknown."""
    return Layer.GPU if medium is None else TIERS.get(medium.upper())
