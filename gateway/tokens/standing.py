"""What is true of a model's tokens, in words: ``exact``, ``exact for 93 % of prompts, else ...``, ``estimated, ...``.

Rules: what was seen decides, and what is known before any prompt came holds until then. Never ``exact`` where some
prompts cannot be.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from gateway.tokens.agreement import Form
from gateway.tokens.families import Obstacle
from gateway.tokens.parity import Lost
from gateway.tokens.reasons import Why

PROMPTS = 1000
"""That are looked back on: some minutes of a busy model's traffic."""

REASONS = 3
"""Of estimates that are named, the most frequent first."""


class Tally:
    """How the last prompts became tokens."""

    def __init__(self) -> None:
        self._last: deque[str] = deque(maxlen=PROMPTS)
        self._counts: Counter[str] = Counter()

    def note(self, why: str) -> None:
        """A prompt was estimated for this reason; empty: it was not."""
        if len(self._last) == PROMPTS:
            self._counts[self._last[0]] -= 1
        self._last.append(why)
        self._counts[why] += 1

    @property
    def share(self) -> float | None:
        """Of prompts that were exact, 0..1; None: there was no prompt."""
        return self._counts[""] / len(self._last) if self._last else None

    @property
    def reasons(self) -> list[str]:
        """Why the others were not, the most frequent first."""
        return [why for why, count in self._counts.most_common() if why and count > 0]


def standing(tally: Tally, obstacles: Mapping[Form, Obstacle], lost: Mapping[Form, Lost], asks: bool) -> str:
    """``obstacles``: what cannot be tokenized here; ``asks``: engines are asked where they can tell. ``lost``: what
    engines make other tokens of."""
    if lost:
        return f"estimated, {'; '.join(f'{form}: {why}' for form, why in lost.items())}"
    share = tally.share
    if share is None or (share == 1.0 and obstacles and not asks):
        return _foreseen(obstacles, asks)
    if share == 1.0:
        return "exact"
    said = ", ".join(_said(why, obstacles) for why in tally.reasons[:REASONS])
    return f"exact for {_percent(share)} % of prompts, else {said}" if share else f"estimated, {said}"


def _foreseen(obstacles: Mapping[Form, Obstacle], asks: bool) -> str:
    """Before a prompt has come whose like is hindered."""
    if not obstacles:
        return "exact"
    ((form, one), *more) = obstacles.items()
    if asks and all(each.asked for each in obstacles.values()):
        return f"exact if an engine tells: {_forms(obstacles)} are asked of the engines, {one.said}"
    return f"estimated, {one.said}" if more else f"exact but for {form}, which are estimated, {one.said}"


def _forms(obstacles: Mapping[Form, Obstacle]) -> str:
    return " and ".join(obstacles)


def _said(why: str, obstacles: Mapping[Form, Obstacle]) -> str:
    if why == Why.NO_TOKENIZER:
        return "no tokenizer is configured"
    return next((f"{why} ({one.said})" for one in obstacles.values() if one.why == why), why)


def _percent(share: float) -> str:
    """Never 100 where some were not, nor 0 where some were."""
    return str(min(99, max(1, round(100 * share))))
