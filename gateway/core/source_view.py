"""What operators see of a source of endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class SourceView(NamedTuple):
    """``problem``: why it cannot be read now; None: it can. ``changed_at``: seconds since the epoch, when it last told
    another list; None: it has told none. ``endpoints``: the URLs of its last list. ``wrong``: entries of it that are
    left out, with the reason."""

    model: str
    source: str
    problem: str | None
    changed_at: float | None
    endpoints: Sequence[str]
    wrong: Sequence[str]
