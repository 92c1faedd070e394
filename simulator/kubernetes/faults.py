"""What may go wrong with an API server, to be set at any time."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Faults:
    """``statuses``: the next GETs are answered with these, one each. ``gone_as_event``: a forgotten version is an
    ERROR event in an answer of 200, else the status 410. ``silent``: watches fall silent for good, bookmarks included,
    and are not ended. ``losing``: watches leave out deletions. ``slow_page``: seconds before each page of a list.
    ``forgetting_pages``: a list's second page is a 410. ``torn``: each event is
    sent in two parts.
    """

    statuses: list[int] = field(default_factory=list)
    gone_as_event: bool = True
    silent: bool = False
    losing: bool = False
    slow_page: float = 0.0
    forgetting_pages: bool = False
    torn: bool = False
