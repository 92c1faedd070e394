"""The number of an engine's data-parallel ranks, as it reports it.

vLLM 0.32, by its source and by observation: a scrape has lines of every rank from the server's start, idle or not,
under labels that begin at the node's first rank. Elastic scaling up adds labels; scaling down removes none.
``/kv_event_sources`` has an entry for each rank and loses those that are scaled away; it is empty if the engine has no
KV events. So it decides if it is not empty, and else the labels do. An engine without KV events that is scaled down
keeps its endpoints, and answers 400 on those of removed ranks: it does not report their removal.

The first report is believed, since no endpoint is lost by it. Later a single report is not: a text may have been cut
short, or written while the engine was changing. ``EngineInspector`` asks again, and both answers must agree. A failed
question, or an answer without ranks, changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.fleet.kv_source import rank_keys
from gateway.fleet.scrape import Scrape
from gateway.fleet.settings import MAX_RANKS


def rank_count(scrape: Scrape, sources: Mapping[str, Any]) -> int:
    """1..``MAX_RANKS``. ``sources``: the engine's ``/kv_event_sources``, or empty."""
    return min(MAX_RANKS, len(rank_keys(sources)) or len(scrape.engines))


def ranks_of(number: int) -> Sequence[int | None]:
    """The ranks of ``number`` endpoints. A single one has none, and no header is sent for it."""
    return range(number) if number > 1 else (None,)
