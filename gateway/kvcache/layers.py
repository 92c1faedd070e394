"""The kinds of knowledge that the index keeps of an endpoint, each with a place of its own on the shelf."""

from __future__ import annotations

from enum import IntEnum


class Layer(IntEnum):
    """An endpoint's place of a layer is its own place, which is the GPU's, plus this."""

    GPU = 0
    CPU = 1
    STORAGE = 2
    PREDICTED = 3
    ESTIMATED = 4


LAYERS = len(Layer)

TIERS = {tier.name: tier for tier in (Layer.GPU, Layer.CPU, Layer.STORAGE)}


def tier_of(medium: str | None) -> Layer | None:
    """The tier of an event's ``medium``, in any case; None: one that we do not know."""
    return Layer.GPU if medium is None else TIERS.get(medium.upper())
