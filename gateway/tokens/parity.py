"""Whether our token ids are the engines': judged by what engines say of live traffic, model by model.

Rules: a verdict needs several witnesses, since single prompts may differ for reasons of their own. While the ids are
not trusted prompts are estimated, and compared all the same, so that trust comes back by itself. An engine that gets
our ids instead of a text counts what we did, whatever its tokenizer: that is no witness, so each engine must have made
the same ids itself before it gets ours, and is tried again and again. What is told names endpoints and numbers, never a
prompt. Synchronous and quick: a comparison costs about a microsecond.
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter, deque
from dataclasses import dataclass
from enum import StrEnum

from gateway.framework import NULL_OBSERVER, Clock, Observer, SystemClock

log = logging.getLogger("kvgate.parity")

WINDOW = 50
"""Comparisons that are looked back on: a few seconds of a busy model's traffic, minutes of a quiet one's."""

LEAST = 5
"""Differences in the window before anything is concluded: one odd client's retries are fewer."""

SHARE = 0.2
"""Of the window's comparisons, those that may differ. Another tokenizer, template or BOS makes nearly all chats differ;
below a fifth, exact ids still place more prompts rightly than estimates would."""

RECOVERY = 50
"""Equal counts in a row that bring trust back. Where one engine in five is wrong, that many come once in 70,000."""

CHECKS = 20
"""Prompts whose ids are compared where there is doubt; and so many equal ones in a row bring trust in ids back: one
that is equal, id by id, proves more than an equal count."""

PAUSE = 600.0
"""Seconds from one such doubt to the next: engines have other work."""

BLIND = 256
"""Reported tokens from which a hit that nobody expected counts as a difference: two of the largest common blocks."""

TRIED = 50
"""Of the prompts that an engine could get as ids, one in so many goes as its text, and is compared."""


class Evidence(StrEnum):
    """What was compared; the value completes a sentence on prompts."""

    COUNT = "the engines counted other tokens"
    IDS = "the engines made other token ids"


@dataclass(frozen=True, slots=True)
class Lost:
    """Why ids are not trusted. ``different`` of ``compared`` differed, most of them on ``endpoint``."""

    evidence: Evidence
    different: int
    compared: int
    endpoint: str

    def __str__(self) -> str:
        return (
            f"of {self.different} in {self.compared} prompts {self.evidence}, most of them on {self.endpoint}: is its "
            "tokenizer or chat template another one? kvgate doctor tells"
        )


@dataclass(slots=True)
class _Proof:
    """That an engine's ids are ours. ``prompts``: since then, those that could go as ids."""

    started: float | None
    prompts: int = 0


class Parity:
    """The trust in one model's ids. Endpoints are told by name. ``sample``: 0..1 of prompts whose ids are compared."""

    def __init__(
        self, model: str, clock: Clock | None = None, observer: Observer = NULL_OBSERVER, *, sample: float = 0.0
    ) -> None:
        self._model = model
        self._clock = clock or SystemClock()
        self._observer = observer
        self._sample = sample
        self._windows: dict[Evidence, deque[str]] = {each: deque(maxlen=WINDOW) for each in Evidence}
        self._hits: deque[str] = deque(maxlen=WINDOW)
        self._agreed = 0
        self._checks = 0
        self._doubted_at: float | None = None
        self._proved: dict[str, _Proof] = {}
        self._wanted: set[str] = set()
        self.lost: Lost | None = None

    @property
    def trusted(self) -> bool:
        """Whether prompts may be placed by our ids."""
        return self.lost is None

    def begin(self) -> None:
        """The model has a tokenizer: say that it is trusted."""
        self._observer.parity(self._model, True)

    def vouches(self, endpoint: str, started: float | None) -> bool:
        """Whether this prompt may go to ``endpoint`` as our ids: its engine has made the same ids itself, since it
        ``started`` (as ``Engine.started``). Where it has not, its ids are wanted."""
        proof = self._proved.get(endpoint)
        if proof is None or proof.started != started:
            self._wanted.add(endpoint)
            return False
        proof.prompts += 1
        return self.lost is None and proof.prompts % TRIED != 0

    def wants_proof(self, endpoint: str) -> bool:
        """Whether prompts could go to ``endpoint`` as ids, if only it had made the same ones."""
        return endpoint in self._wanted

    def wants_ids(self, chance: float) -> bool:
        """Whether this prompt's ids are to be compared with the engine's. ``chance``: a random number in 0..1."""
        if self.lost is not None and self.lost.evidence is Evidence.IDS:
            self._doubt()
        return self._checks > 0 or chance < self._sample

    def counted(self, endpoint: str, ours: int, reported: int) -> None:
        """Our count of a prompt's tokens against ``usage.prompt_tokens``."""
        if ours != reported:
            self._proved.pop(endpoint, None)
        self._compared(Evidence.COUNT, endpoint, ours == reported)

    def rendered(self, endpoint: str, ours: array[int], theirs: list[int], *, started: float | None = None) -> None:
        """Our ids of a prompt against the engine's, whose process ``started`` then."""
        equal = ours.tolist() == theirs
        self._wanted.discard(endpoint)
        if equal:
            self._proved.setdefault(endpoint, _Proof(started)).started = started
        else:
            self._proved.pop(endpoint, None)
        self._checks = max(0, self._checks - 1)
        self._observer.ids_compared(self._model, equal)
        self._compared(Evidence.IDS, endpoint, equal)

    def hit(self, endpoint: str, expected: int, reported: int) -> None:
        """What was expected in the endpoint's cache by exact ids, against ``cached_tokens``.

        No verdict, only a doubt, for which ids are compared: hits out of nothing are what wrong ids of the right number
        look like, but an engine may also have got the KV from elsewhere, or from a request that another gateway sent.
        """
        if reported >= BLIND:
            self._hits.append(endpoint if expected == 0 else "")
            if _suspicious(self._hits) and self._doubt():
                self._hits.clear()
                log.info(
                    "model %s: its engines hit their caches where nothing was expected: ids are compared", self._model
                )

    def _doubt(self) -> bool:
        """Have some ids compared, unless that was done lately."""
        now = self._clock.monotonic()
        if self._doubted_at is not None and now - self._doubted_at < PAUSE:
            return False
        self._checks, self._doubted_at = CHECKS, now
        return True

    def _compared(self, evidence: Evidence, endpoint: str, equal: bool) -> None:
        if self.lost is not None:
            if self.lost.evidence is evidence:
                self._agreed = self._agreed + 1 if equal else 0
                if self._agreed >= (RECOVERY if evidence is Evidence.COUNT else CHECKS):
                    self._restore()
            return
        window = self._windows[evidence]
        window.append("" if equal else endpoint)
        if not equal and _suspicious(window):
            worst = Counter(filter(None, window)).most_common(1)[0][0]
            self.lost = Lost(evidence, len(window) - window.count(""), len(window), worst)
            self._agreed = 0
            self._observer.parity(self._model, False)
            log.warning("model %s: its prompts are estimated from now on: %s", self._model, self.lost)

    def _restore(self) -> None:
        self.lost = None
        for window in (*self._windows.values(), self._hits):
            window.clear()
        self._observer.parity(self._model, True)
        log.warning("model %s: its prompts are tokenized again: the engines agree", self._model)


def _suspicious(window: deque[str]) -> bool:
    """Whether too many of its comparisons differed: those that name an endpoint."""
    different = len(window) - window.count("")
    return different >= LEAST and different > SHARE * len(window)
