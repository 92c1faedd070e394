"""A model's tokenization in one phrase: ``exact``, ``exact for 93 % of prompts, else ...``, ``estimated, ...``.

Rules: observed prompts decide; before the first one, what is known from the tokenizer's files does. Never ``exact`` if
some prompts cannot be.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping

from gateway.tokens.agreement import Form
from gateway.tokens.families import Obstacle
from gateway.tokens.parity import Distrust
from gateway.tokens.reasons import Why

PROMPTS = 1000
"""The number of latest prompts that are counted: some minutes of a busy model's traffic."""

REASONS = 3
"""Reasons for estimates that are named, the most frequent first."""


class Tally:
    """Counts how the last prompts were tokenized. ``share``: of exact prompts, 0..1; None: there was no prompt yet."""

    def __init__(self, report: Callable[[float], None]) -> None:
        """``report``: is called with each new ``share``."""
        self.share: float | None = None
        self._report = report
        self._last: deque[str] = deque(maxlen=PROMPTS)
        self._counts: Counter[str] = Counter()

    def note(self, why: str) -> None:
        """Count a prompt. ``why``: the reason for its estimate; empty: it is exact."""
        last, counts = self._last, self._counts
        if len(last) == PROMPTS:
            counts[last[0]] -= 1
        last.append(why)
        counts[why] = counts.get(why, 0) + 1
        share = counts.get("", 0) / len(last)
        if share != self.share:
            self.share = share
            self._report(share)

    @property
    def reasons(self) -> list[str]:
        """Why the others were estimated, the most frequent reason first."""
        return [why for why, count in self._counts.most_common() if why and count > 0]


def status_of(tally: Tally, obstacles: Mapping[Form, Obstacle], distrusted: Mapping[Form, Distrust], asks: bool) -> str:
    """``obstacles``: what cannot be tokenized here. ``distrusted``: what most engines tokenize differently. ``asks``:
    engines are asked for the ids where they know them."""
    if distrusted:
        return f"estimated, {'; '.join(f'{form}: {why}' for form, why in distrusted.items())}"
    share = tally.share
    if share is None or (share == 1.0 and obstacles and not asks):
        return _foreseen(obstacles, asks)
    if share == 1.0:
        return "exact"
    said = ", ".join(_said(why, obstacles) for why in tally.reasons[:REASONS])
    return f"exact for {_percent(share)} % of prompts, else {said}" if share else f"estimated, {said}"


def _foreseen(obstacles: Mapping[Form, Obstacle], asks: bool) -> str:
    """The phrase while no prompt has come that cannot be tokenized here."""
    if not obstacles:
        return "exact"
    ((form, one), *more) = obstacles.items()
    if asks and all(each.engine_knows for each in obstacles.values()):
        return f"exact if an engine reports the token ids of {_forms(obstacles)}: {one.said}"
    return f"estimated, {one.said}" if more else f"exact but for {form}, which are estimated, {one.said}"


def _forms(obstacles: Mapping[Form, Obstacle]) -> str:
    return " and ".join(obstacles)


def _said(why: str, obstacles: Mapping[Form, Obstacle]) -> str:
    if why == Why.NO_TOKENIZER:
        return "no tokenizer is configured"
    return next((f"{why} ({one.said})" for one in obstacles.values() if one.why == why), why)


def _percent(share: float) -> str:
    """Never 100 if some prompts were not exact, nor 0 if some were."""
    return str(min(99, max(1, round(100 * share))))
