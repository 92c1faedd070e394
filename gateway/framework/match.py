"""What an endpoint holds of a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class Source(StrEnum):
    """How sure a match is, surest first."""

    EVENTS = "events"  # the engine's own KV events say so
    PREDICTED = "predicted"  # a part of it was sent there within the last seconds; no event yet
    ESTIMATED = "estimated"  # no events: what was routed there, within the capacity that the engine reports
    NONE = "none"


class Match(NamedTuple):
    """Leading tokens of one prompt on one endpoint. One is made for each candidate of each request.

    ``gpu``, ``cpu``, ``storage``: tokens of the leading run that are best found on that tier; they do not overlap, and
    their sum is the length of the match. Whole blocks only, but not yet cut to prompt length - 1.
    ``expected_hit``: the figure to compare with the engine's ``cached_tokens``: the match cut to whole blocks of that
    engine and to prompt length - 1.
    """

    gpu: int = 0
    cpu: int = 0
    storage: int = 0
    expected_hit: int = 0
    source: Source = Source.NONE

    @property
    def tokens(self) -> int:
        return self.gpu + self.cpu + self.storage


NO_MATCH = Match()
NO_ROOM: Mapping[int, int] = {}


class Matches(dict[int, Match]):
    """Slot -> match; a slot without one holds nothing of the prompt.

    ``room``: slot -> tokens of KV memory in which nothing is kept, so that a new prompt pushes nothing out; a slot that
    is not there has none, or none that is known. To be set where it is known.
    """

    room: Mapping[int, int] = NO_ROOM

    def __missing__(self, slot: int) -> Match:
        return NO_MATCH
