"""Whether our token ids are the engines': judged by what engines say of live traffic, endpoint by endpoint.

Rules: an endpoint that makes other tokens than we do, of chats or of texts, loses its own exactness only: what it
holds of such a prompt is estimated by what was sent there. Where most endpoints of a model differ it is we who are
wrong, and such prompts are estimated everywhere. Comparing goes on all the same, so that trust comes back by itself. An
engine that gets our ids instead of a text counts what we did, whatever its tokenizer: that is no witness, so each one
must have made the same ids itself before it gets ours, and is tried again and again. What is told names endpoints and
numbers, never a prompt. Synchronous and quick: a comparison costs about a microsecond.
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.framework import NOWHERE, NULL_OBSERVER, Clock, Observer, SystemClock
from gateway.tokens.agreement import CHECKS, WINDOW, Agreement, Difference, Evidence, Form, suspicious

log = logging.getLogger("kvgate.parity")

PAUSE = 600.0
"""Seconds from one doubt in ids to the next: engines have other work."""

BLIND = 256
"""Reported tokens from which a hit that nobody expected counts as a difference: two of the largest common blocks."""

TRIED = 50
"""Of the prompts that an engine could get as ids, one in so many goes as its text, and is compared."""

FEW = 3
"""Endpoints on which a verdict on the model stands at least, where it has as many: one of three is no majority."""

REMEDY = "is the tokenizer or chat template there another one? kvgate doctor tells"


@dataclass(frozen=True, slots=True)
class Lost:
    """Why a model's ids are not trusted: what ``different`` endpoints made of its prompts."""

    different: Mapping[str, Difference]

    def __str__(self) -> str:
        return f"most of its engines differ: {_list(self.different)}: {REMEDY}"


@dataclass(slots=True)
class _Proof:
    """That an engine's ids are ours. ``prompts``: since then, those that could go as ids."""

    started: float | None
    prompts: int = 0


class Parity:
    """The trust in one model's ids. Endpoints are told by name. ``sample``: 0..1 of prompts whose ids are compared.
    ``members``: the names of the model's endpoints; until it is set, those count that were compared."""

    def __init__(
        self, model: str, clock: Clock | None = None, observer: Observer = NULL_OBSERVER, *, sample: float = 0.0
    ) -> None:
        self.members: Callable[[], Collection[str]] | None = None
        self._model = model
        self._complete = True
        self._clock = clock or SystemClock()
        self._observer = observer
        self._sample = sample
        self._agreements: dict[Form, dict[str, Agreement]] = {form: {} for form in Form}
        self._lost: dict[Form, Lost] = {}
        self._differing: dict[Form, frozenset[str]] = dict.fromkeys(Form, NOWHERE)
        self._hits: deque[str] = deque(maxlen=WINDOW)
        self._checks: Counter[str] = Counter()
        self._doubted: dict[str, float] = {}
        self._proved: dict[str, _Proof] = {}
        self._wanted: set[str] = set()

    @property
    def trusted(self) -> bool:
        """Whether prompts of every form may be placed by our ids, somewhere."""
        return not self._lost

    def lost(self, form: Form) -> Lost | None:
        """Why prompts of ``form`` are estimated everywhere; None: they are not."""
        return self._lost.get(form)

    def differing(self, form: Form) -> frozenset[str]:
        """Endpoints that make other tokens of prompts of ``form`` than we do."""
        return self._differing[form]

    @property
    def differences(self) -> dict[str, Sequence[Difference]]:
        """By endpoint, what it makes of prompts that we do not."""
        found: dict[str, list[Difference]] = {}
        for agreements in self._agreements.values():
            for name, one in agreements.items():
                if one.difference is not None:
                    found.setdefault(name, []).append(one.difference)
        return dict(found)

    def begin(self, *, complete: bool = True) -> None:
        """The model has a tokenizer: say whether it is trusted. ``complete``: it makes tokens of chats and texts."""
        self._complete = complete
        self.say()

    def say(self) -> None:
        """Tell the observer, once more, whether prompts are placed by our ids."""
        self._observer.parity(self._model, self._complete and self.trusted)

    def vouches(self, endpoint: str, started: float | None, form: Form) -> bool:
        """Whether a prompt of ``form`` may go to ``endpoint`` as our ids: its engine has made the same ids itself,
        since it ``started`` (as ``Engine.started``). Where it has not, its ids are wanted."""
        proof = self._proved.get(endpoint)
        if proof is None or proof.started != started:
            self._wanted.add(endpoint)
            return False
        proof.prompts += 1
        return form not in self._lost and endpoint not in self._differing[form] and proof.prompts % TRIED != 0

    def wants_proof(self, endpoint: str) -> bool:
        """Whether prompts could go to ``endpoint`` as ids, if only it had made the same ones."""
        return endpoint in self._wanted

    def wants_ids(self, endpoint: str, form: Form, chance: float) -> bool:
        """Whether the ids of this prompt are to be compared with those of the engine at ``endpoint``. ``chance``: a
        random number in 0..1."""
        agreement = self._agreements[form].get(endpoint)
        difference = None if agreement is None else agreement.difference
        if difference is not None and difference.evidence is Evidence.IDS:
            self._doubt(endpoint)
        return self._checks[endpoint] > 0 or chance < self._sample

    def counted(self, endpoint: str, form: Form, ours: int, reported: int) -> None:
        """Our count of a prompt's tokens against ``usage.prompt_tokens``."""
        if ours != reported:
            self._proved.pop(endpoint, None)
        self._compared(Evidence.COUNT, form, endpoint, ours == reported)

    def rendered(
        self, endpoint: str, form: Form, ours: array[int], theirs: list[int], *, started: float | None = None
    ) -> None:
        """Our ids of a prompt against the engine's, whose process ``started`` then."""
        equal = ours.tolist() == theirs
        self._wanted.discard(endpoint)
        if equal:
            self._proved.setdefault(endpoint, _Proof(started)).started = started
        else:
            self._proved.pop(endpoint, None)
        if self._checks[endpoint] > 0:
            self._checks[endpoint] -= 1
        self._observer.ids_compared(self._model, equal)
        self._compared(Evidence.IDS, form, endpoint, equal)

    def hit(self, endpoint: str, expected: int, reported: int) -> None:
        """What was expected in the endpoint's cache by exact ids, against ``cached_tokens``.

        No verdict, only a doubt, for which ids are compared: hits out of nothing are what wrong ids of the right number
        look like, but an engine may also have got the KV from elsewhere, or from a request that another gateway sent.
        """
        if reported < BLIND:
            return
        self._hits.append(endpoint if expected == 0 else "")
        surprised = set(filter(None, self._hits))
        if not suspicious(len(self._hits) - self._hits.count(""), len(self._hits)):
            return
        if doubted := [name for name in surprised if self._doubt(name)]:
            self._hits.clear()
            log.info(
                "model %s: caches were hit where nothing was expected, on %s: ids are compared",
                *(self._model, ", ".join(sorted(doubted))),
            )

    def _doubt(self, endpoint: str) -> bool:
        """Have some ids compared, unless that was done lately."""
        now = self._clock.monotonic()
        if now - self._doubted.get(endpoint, -PAUSE) < PAUSE:
            return False
        self._checks[endpoint], self._doubted[endpoint] = CHECKS, now
        return True

    def _compared(self, evidence: Evidence, form: Form, endpoint: str, equal: bool) -> None:
        agreement = self._agreements[form].get(endpoint)
        if agreement is None:
            agreement = self._agreements[form][endpoint] = Agreement(form)
        before = agreement.difference
        if not agreement.compared(evidence, equal):
            return
        members = None if self.members is None else frozenset(self.members())
        if members is not None:
            self._forget_but(members)
        self._judge(form, members)
        if agreement.difference != before:
            self._tell(endpoint, agreement.difference, form)

    def _judge(self, form: Form, members: Collection[str] | None) -> None:
        """Who differs, and whether these are most."""
        agreements = self._agreements[form]
        differing = {name: one.difference for name, one in agreements.items() if one.difference is not None}
        agreeing = sum(one.agrees for one in agreements.values())
        self._differing[form] = frozenset(differing)
        known = len(agreements) if members is None else len(members)
        most = 2 * len(differing) > max(len(differing) + agreeing, min(known, FEW))
        trusted = self.trusted
        if most and form not in self._lost:
            self._lost[form] = lost = Lost(differing)
            log.warning("model %s: its %s are estimated from now on: %s", self._model, form, lost)
        elif not most and self._lost.pop(form, None) is not None:
            self._hits.clear()
            log.warning("model %s: its %s are tokenized again: most engines agree", self._model, form)
        if self.trusted != trusted:
            self.say()

    def _tell(self, endpoint: str, difference: Difference | None, form: Form) -> None:
        agrees = not any(endpoint in differing for differing in self._differing.values())
        self._observer.endpoint_parity(self._model, endpoint, agrees)
        if difference is None:
            log.warning("model %s: %s makes the tokens of %s that we make, again", self._model, endpoint, form)
        elif form not in self._lost:
            log.warning(
                "model %s: %s on %s are estimated from now on, and exact on the others: %s: %s",
                *(self._model, form, endpoint, difference, REMEDY),
            )

    def _forget_but(self, members: Collection[str]) -> None:
        """Endpoints come and go."""
        every: tuple[dict[str, Any], ...] = (*self._agreements.values(), self._proved, self._doubted, self._checks)
        for known in every:
            for name in known.keys() - members:
                del known[name]
        self._wanted.intersection_update(members)


def _list(differences: Mapping[str, Difference]) -> str:
    """The first of them, by name."""
    shown = [f"{name} ({difference})" for name, difference in list(differences.items())[:FEW]]
    more = len(differences) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
