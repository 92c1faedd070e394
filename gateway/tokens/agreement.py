"""Whether one engine's tokenizer agrees with ours, judged by its latest comparisons.

Rules: a verdict needs several differences, since single prompts may differ for reasons of their own. Several equal
comparisons in a row revoke it. Synchronous: a comparison costs less than a microsecond.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from gateway.framework import Kind

WINDOW = 50
"""Size of the sliding window, in comparisons: a few seconds of a busy engine's traffic, minutes of a quiet one's."""

LEAST = 5
"""The verdict needs at least this many differences in the window. One odd client's retries make fewer."""

SHARE = 0.2
"""The share of the window's comparisons that may differ. Another tokenizer, template or BOS makes nearly all chats
differ; below a fifth, exact ids still place more prompts rightly than estimates would."""

RECOVERY = 50
"""Equal counts in a row that restore trust. An engine that counts one prompt in five differently has that many once in
70,000."""

CHECKS = 20
"""Prompts in a row with equal ids that restore trust: a prompt that is equal id by id proves more than an equal count.
This is also the number of prompts that are compared when there is doubt."""


class Form(StrEnum):
    """What a prompt is made of. A chat's template can differ where the tokenizer, and so every text, is the same."""

    CHAT = "chats"
    TEXT = "texts"


FORMS = {kind: Form.TEXT if kind is Kind.COMPLETION else Form.CHAT for kind in Kind}
"""The form of a request that generates, by its kind."""


class Evidence(StrEnum):
    """What was compared. The value completes "the engine ..."."""

    COUNT = "counted other tokens"
    IDS = "made other token ids"


@dataclass(frozen=True, slots=True)
class Difference:
    """``different`` of ``compared`` prompts differed."""

    evidence: Evidence
    form: Form
    different: int
    compared: int

    def __str__(self) -> str:
        return f"it {self.evidence} in {self.different} of {self.compared} {self.form}"


class Agreement:
    """The comparisons of one engine and one form of prompts.

    ``difference``: the verdict; None: the engine is not found to differ. ``agrees``: it is not, and enough prompts
    were compared. ``counts``: whether the last counts were equal. While it ``agrees``, an equal count changes neither,
    and may be added there.
    """

    __slots__ = ("_agreed", "_form", "_windows", "agrees", "counts", "difference")

    def __init__(self, form: Form) -> None:
        self.difference: Difference | None = None
        self.agrees = False
        self._form = form
        self._agreed = 0
        self._windows: dict[Evidence, deque[bool]] = {each: deque(maxlen=WINDOW) for each in Evidence}
        self.counts = self._windows[Evidence.COUNT]

    def compared(self, evidence: Evidence, equal: bool) -> bool:
        """Add one prompt's comparison. Returns whether ``difference`` or ``agrees`` has changed."""
        if equal and self.agrees:
            self._windows[evidence].append(True)  # which changes neither
            return False
        before = self.difference, self.agrees
        if self.difference is None:
            self._judge(evidence, equal)
        elif self.difference.evidence is evidence:
            self._agreed = self._agreed + 1 if equal else 0
            if self._agreed >= (RECOVERY if evidence is Evidence.COUNT else CHECKS):
                self._restore(evidence)
        enough = any(sum(window) >= LEAST for window in self._windows.values())
        self.agrees = enough and self.difference is None
        return before != (self.difference, self.agrees)

    def _judge(self, evidence: Evidence, equal: bool) -> None:
        window = self._windows[evidence]
        window.append(equal)
        if not equal and suspicious(different := len(window) - sum(window), len(window)):
            self.difference, self._agreed = Difference(evidence, self._form, different, len(window)), 0

    def _restore(self, evidence: Evidence) -> None:
        self.difference = None
        for window in self._windows.values():
            window.clear()
        self._windows[evidence].extend([True] * LEAST)  # the engine has just agreed more often than that


def suspicious(different: int, compared: int) -> bool:
    """Whether too many of ``compared`` were ``different``."""
    return different >= LEAST and different > SHARE * compared
