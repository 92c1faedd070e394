"""A link that moves KV: one thing after the other, each at the link's pace."""

from __future__ import annotations


class Link:
    """``token``: seconds of one token's KV. ``latency``: seconds that a transfer takes beside its tokens, in which the
    link is free for others. ``free_at``: when what it carries is through."""

    def __init__(self, token: float, latency: float = 0.0) -> None:
        self.token = token
        self.latency = latency
        self.free_at = 0.0


def carry(tokens: int, now: float, *links: Link) -> float:
    """Send ``tokens`` over all of ``links`` at once, as soon as all are free, at the pace of the slowest. Returns when
    they are there."""
    end = max(now, *(link.free_at for link in links)) + tokens * max(link.token for link in links)
    for link in links:
        link.free_at = end
    return end + max(link.latency for link in links)
