"""How many data-parallel ranks an engine has, in its own words.

What vLLM 0.32 says, read in its source and seen live: a scrape has the lines of every rank from the server's start,
idle or not, under labels that begin at the node's first rank. Elastic scaling up adds labels; scaling down takes none
away. ``/kv_event_sources`` has an entry for each rank, and loses those that are scaled away; where the engine has no KV
events it is empty. So it decides where it says anything, and else the labels do: an engine without KV events that is
scaled down keeps its endpoints, and answers 400 on those that are gone, since nothing of it tells.

Evidence: the first word is believed, since no endpoint is lost by it. Later a single one is not: a text may have been
cut short on its way, or written while the engine was changing. ``EngineWatch`` asks again, and both must say the same.
What cannot be asked, or says nothing of ranks, is no evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.fleet.kv_source import numbered
from gateway.fleet.scrape import Scrape
from gateway.fleet.settings import MAX_RANKS


def rank_count(scrape: Scrape, sources: Mapping[str, Any]) -> int:
    """``sources``: the engine's ``/kv_event_sources``; empty where it has not told any. 1 to ``MAX_RANKS``."""
    return min(MAX_RANKS, len(numbered(sources)) or len(scrape.engines))


def ranks_of(number: int) -> Sequence[int | None]:
    """The ranks of ``number`` endpoints: a single one bears none, and is sent no header."""
    return range(number) if number > 1 else (None,)
