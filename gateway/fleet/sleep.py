"""How deeply an engine sleeps, as its scrape tells it: ``vllm:engine_sleep_state``, of each rank a sample for each of
``awake``, ``weights_offloaded`` and ``discard_all``."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

AWAKE = b'sleep_state="awake"'
DISCARD_ALL = b'sleep_state="discard_all"'


class Sleep(IntEnum):
    """As vLLM counts it. ``PAUSED``: it keeps weights and KV. ``OFFLOADED``: its weights are in the host's memory, its
    KV is lost. ``DISCARDED``: its weights are lost as well."""

    PAUSED = 0
    OFFLOADED = 1
    DISCARDED = 2


def deepest(samples: Iterable[tuple[bytes, float]]) -> Sleep | None:
    """Of all ranks; None: all are awake, or the engine says nothing of it. ``samples``: labels and value.

    An engine that says no more than that it is not awake is taken to have lost its KV.
    """
    yes, no = list[bytes](), list[bytes]()
    for labels, number in samples:
        (yes if number else no).append(labels)
    if not any(AWAKE in labels for labels in no):
        return None
    if any(DISCARD_ALL in labels for labels in yes):
        return Sleep.DISCARDED
    paused = all(AWAKE in labels for labels in yes) and any(AWAKE not in labels for labels in no)
    return Sleep.PAUSED if paused else Sleep.OFFLOADED
