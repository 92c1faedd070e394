"""Whether our token ids are the engines', judged by what engines report of live traffic, endpoint by endpoint.

Rules: if an endpoint tokenizes chats or texts differently, only its own matches lose their exactness: what it holds of
such a prompt is estimated from what was sent to it. If most endpoints of a model differ, we are wrong, and such prompts
are estimated everywhere. Comparing continues all the same, so that trust can return by itself.

An engine that gets our ids instead of a text counts the same tokens whatever its tokenizer is, so its count proves
nothing. So each engine must first have made the same ids from a text itself before it gets ours, and the check is
repeated now and then. Log lines hold names of endpoints and numbers, never a prompt. Synchronous: a comparison costs
about a microsecond.
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gateway.core.clock import SystemClock
from gateway.core.observer import NULL_OBSERVER, Observer
from gateway.core.prompt import NOWHERE
from gateway.framework import Clock
from gateway.tokens.agreement import CHECKS, WINDOW, Agreement, Difference, Evidence, Form, suspicious

log = logging.getLogger("kvgate.parity")

PAUSE = 600.0
"""Least seconds between two series of comparisons of ids with one endpoint, to limit the work of engines."""

BLIND = 256
"""Reported tokens from which an unexpected cache hit counts as a difference: two of the largest common blocks."""

TRIED = 50
"""One in this many of the prompts that an engine could get as ids is sent as text and compared."""

FEW = 3
"""The least number of endpoints for a verdict on the model, if it has as many: one of three is no majority."""

REMEDY = "is the tokenizer or chat template there another one? see kvgate doctor"


@dataclass(frozen=True, slots=True)
class Distrust:
    """Why a model's ids are not trusted: how ``different`` endpoints tokenized its prompts."""

    different: Mapping[str, Difference]

    def __str__(self) -> str:
        return f"most of its engines differ: {_list(self.different)}: {REMEDY}"


@dataclass(slots=True)
class _Proof:
    """Proof that an engine's ids are ours. ``prompts``: those since then that could be sent as ids."""

    started: float | None
    prompts: int = 0


class Parity:
    """How far one model's ids are trusted. Endpoints are known by name.

    ``sample``: the share of prompts whose ids are compared, 0..1. ``members``: gives the names of the model's
    endpoints; until it is set, the endpoints that were compared count as all.

    ``distrusted``: by form, why its prompts are estimated everywhere; a missing entry: they are not. ``differing``: by
    form, the endpoints that tokenize its prompts differently. ``asks``: whether ``wants_ids`` or ``needs_proof`` may
    be true of any prompt now.
    """

    def __init__(
        self, model: str, clock: Clock | None = None, observer: Observer = NULL_OBSERVER, *, sample: float = 0.0
    ) -> None:
        self.members: Callable[[], Collection[str]] | None = None
        self._model = model
        self._complete = True
        self._clock = clock or SystemClock()
        self._observer = observer
        self._sample = sample
        self._agreements = {form: defaultdict[str, Agreement](partial(Agreement, form)) for form in Form}
        self.distrusted: dict[Form, Distrust] = {}
        self.differing: dict[Form, frozenset[str]] = dict.fromkeys(Form, NOWHERE)
        self._hits: deque[str] = deque(maxlen=WINDOW)
        self._checks: Counter[str] = Counter()
        self._doubted: dict[str, float] = {}
        self._proved: dict[str, _Proof] = {}
        self._wanted: set[str] = set()
        self.asks = sample > 0

    @property
    def trusted(self) -> bool:
        """Whether prompts of every form are placed by our ids, on some endpoint at least."""
        return not self.distrusted

    @property
    def differences(self) -> dict[str, Sequence[Difference]]:
        """By endpoint, how it differs."""
        found: dict[str, list[Difference]] = {}
        for agreements in self._agreements.values():
            for name, one in agreements.items():
                if one.difference is not None:
                    found.setdefault(name, []).append(one.difference)
        return dict(found)

    def begin(self, *, complete: bool = True) -> None:
        """The model has a tokenizer: report whether its ids are trusted. ``complete``: it tokenizes chats and texts."""
        self._complete = complete
        self.report()

    def report(self) -> None:
        """Report to the observer whether prompts are placed by our ids."""
        self._observer.parity(self._model, self._complete and self.trusted)

    def may_send_ids(self, endpoint: str, started: float | None, form: Form) -> bool:
        """Whether a prompt of ``form`` may be sent to ``endpoint`` as our ids: its engine has made the same ids itself
        since it ``started`` (as ``Engine.started``). If it has not, its ids are requested."""
        proof = self._proved.get(endpoint)
        if proof is None or proof.started != started:
            self._wanted.add(endpoint)
            self.asks = True
            return False
        proof.prompts += 1
        return form not in self.distrusted and endpoint not in self.differing[form] and proof.prompts % TRIED != 0

    def needs_proof(self, endpoint: str) -> bool:
        """Whether prompts could be sent to ``endpoint`` as ids, once it has made the same ones."""
        return endpoint in self._wanted

    def wants_ids(self, endpoint: str, form: Form, chance: float) -> bool:
        """Whether the ids of this prompt are to be compared with those of the engine at ``endpoint``. ``chance``: a
        random number in 0..1."""
        agreement = self._agreements[form].get(endpoint)
        difference = None if agreement is None else agreement.difference
        if difference is not None and difference.evidence is Evidence.IDS:
            self._doubt(endpoint)
        return self._checks[endpoint] > 0 or chance < self._sample

    def compare_counts(self, endpoint: str, form: Form, ours: int, reported: int) -> None:
        """Compare our count of a prompt's tokens with ``usage.prompt_tokens``."""
        agreement = self._agreements[form][endpoint]
        if ours != reported:
            self._proved.pop(endpoint, None)
        elif agreement.agrees:
            agreement.counts.append(True)
            return
        before = agreement.difference
        if agreement.compared(Evidence.COUNT, ours == reported):
            self._changed(form, endpoint, agreement.difference, before)

    def compare_ids(
        self, endpoint: str, form: Form, ours: array[int], theirs: list[int], *, started: float | None = None
    ) -> None:
        """Compare our ids of a prompt with the engine's, whose process ``started`` then."""
        equal = ours.tolist() == theirs
        self._wanted.discard(endpoint)
        if equal:
            self._proved.setdefault(endpoint, _Proof(started)).started = started
        else:
            self._proved.pop(endpoint, None)
        if self._checks[endpoint] > 0:
            self._checks[endpoint] -= 1
        self._observer.ids_compared(self._model, equal)
        agreement = self._agreements[form][endpoint]
        before = agreement.difference
        if agreement.compared(Evidence.IDS, equal):
            self._changed(form, endpoint, agreement.difference, before)
        self._update_asks()

    def compare_hits(self, endpoint: str, expected: int, reported: int) -> None:
        """Compare the hit that exact ids predicted at the endpoint with ``cached_tokens``.

        A difference is not a verdict, only a reason to compare ids. Ids that are wrong but of the right number cause
        unexpected hits. But the engine may also have got the KV from another engine, or from another gateway's request.
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
        self.asks = True
        return True

    def _changed(self, form: Form, endpoint: str, difference: Difference | None, before: Difference | None) -> None:
        """An endpoint's agreement has changed: its ``difference`` was another ``before``, or it agrees only now."""
        members = None if self.members is None else frozenset(self.members())
        if members is not None:
            self._forget_but(members)
        self._judge(form, members)
        self._update_asks()
        if difference != before:
            self._report_change(endpoint, difference, form)

    def _update_asks(self) -> None:
        # Of engines that made other ids some are asked for again, time after time.
        doubted = any(one.evidence is Evidence.IDS for several in self.differences.values() for one in several)
        self.asks = self._sample > 0 or bool(self._wanted) or doubted or any(self._checks.values())

    def _judge(self, form: Form, members: Collection[str] | None) -> None:
        """Decide who differs, and whether most do."""
        agreements = self._agreements[form]
        differing = {name: one.difference for name, one in agreements.items() if one.difference is not None}
        agreeing = sum(one.agrees for one in agreements.values())
        self.differing[form] = frozenset(differing)
        known = len(agreements) if members is None else len(members)
        most = 2 * len(differing) > max(len(differing) + agreeing, min(known, FEW))
        trusted = self.trusted
        if most and form not in self.distrusted:
            self.distrusted[form] = distrust = Distrust(differing)
            log.warning("model %s: its %s are estimated from now on: %s", self._model, form, distrust)
        elif not most and self.distrusted.pop(form, None) is not None:
            self._hits.clear()
            log.warning("model %s: its %s are tokenized again: most engines agree", self._model, form)
        if self.trusted != trusted:
            self.report()

    def _report_change(self, endpoint: str, difference: Difference | None, form: Form) -> None:
        agrees = not any(endpoint in differing for differing in self.differing.values())
        self._observer.endpoint_parity(self._model, endpoint, agrees)
        if difference is None:
            log.warning("model %s: %s makes the tokens of %s that we make, again", self._model, endpoint, form)
        elif form not in self.distrusted:
            log.warning(
                "model %s: %s on %s are estimated from now on, and exact on the others: %s: %s",
                *(self._model, form, endpoint, difference, REMEDY),
            )

    def _forget_but(self, members: Collection[str]) -> None:
        """Drop what is known of endpoints that are gone."""
        every: tuple[dict[str, Any], ...] = (*self._agreements.values(), self._proved, self._doubted, self._checks)
        for known in every:
            for name in known.keys() - members:
                del known[name]
        self._wanted.intersection_update(members)


def _list(differences: Mapping[str, Difference]) -> str:
    """The first few, by name."""
    shown = [f"{name} ({difference})" for name, difference in list(differences.items())[:FEW]]
    more = len(differences) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
