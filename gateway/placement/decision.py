"""A decision, as names and numbers: what is kept of it, shown of it, and said of it as JSON. No word of a prompt.

Every request pays for this, so a decision holds the names and arrays from which it can be shown, and nothing is put
together before it is asked for. An endpoint that is dropped must be free to go: what is kept of it is its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec

from gateway.errors import GatewayError
from gateway.framework import NO_MATCH, Kind, Plan, Request
from gateway.framework.match import Match
from gateway.framework.request import DECODE, NO_COSTS, PREFILL
from gateway.scheduling.trace import ProfileRun

OF_ONE, OF_SCORE, OF_NAME, OF_MATCH = 1800, 8, 16, 200
"""Bytes: of a decision without its candidates, of a scorer's score of one, of a name where filters removed some, and of
what one holds of the prompt."""

Terms = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By endpoint and scorer: what the score is made of, in one run of a profile."""


class Decision(msgspec.Struct, eq=False):
    """One placement of a request, or one that could not be made. Not to be changed.

    ``matches``: by slot. ``runs``: of profiles, from which the scores can be shown. ``legs``: each one's kind and the
    name of its endpoint; the last one is the decode leg. There are none where there is an ``error``, its message.
    ``reason``, ``connector``, ``strict``, ``costs``: as in ``Plan``. ``size``: bytes, about.
    """

    request_id: str
    model: str
    adapter: str | None
    kind: Kind
    stream: bool
    prompt_tokens: int
    exact: bool
    max_tokens: int | None
    expected_output: float
    matches: Mapping[int, Match]
    handler: str
    runs: Sequence[ProfileRun]
    legs: tuple[tuple[str, str], ...]
    reason: str
    connector: str
    strict: bool
    costs: Mapping[str, float]
    error: str | None
    size: int

    @classmethod
    def of(cls, request: Request, made: Plan | GatewayError, runs: Sequence[ProfileRun] = ()) -> Self:
        """``made``: the plan, or why there is none."""
        model, size = request.model, OF_ONE + OF_MATCH * len(request.matches)
        for run in runs:
            each = OF_SCORE * len(run.columns)
            if run.scored is not None:
                each += OF_NAME
            size += each * len(run.roster.names)
        legs: tuple[tuple[str, str], ...] = ()
        reason, connector, strict, costs, error = "", "", False, NO_COSTS, None
        if isinstance(made, GatewayError):
            error = made.message
        else:
            for kind, endpoint in made.legs:
                legs += ((kind, endpoint.name),)
            reason, connector, strict, costs = made.reason, made.connector, made.strict, made.costs
        return cls(
            *(request.id, model.name, request.adapter, request.kind, request.stream, request.prompt_tokens),
            *(request.exact, request.max_tokens, request.expected_output, request.matches, model.handler),
            runs,
            legs,
            reason,
            connector,
            strict,
            costs,
            error,
            size,
        )

    def endpoint(self, kind: str) -> str | None:
        """The name of the endpoint of the leg of this kind; None: there is none."""
        for leg, name in self.legs:
            if leg == kind:
                return name
        return None

    def is_at(self, endpoint: str) -> bool:
        """Whether the endpoint of this name has a leg of it."""
        return any(name == endpoint for _, name in self.legs)

    def to_json(self, terms: Sequence[Terms] = ()) -> dict[str, Any]:
        """``terms``: of each of ``runs``, where they are known."""
        return {
            "model": self.model,
            "adapter": self.adapter,
            "kind": str(self.kind),
            "stream": self.stream,
            "prompt_tokens": self.prompt_tokens,
            "exact": self.exact,
            "max_tokens": self.max_tokens,
            "expected_output": self.expected_output,
            "handler": self.handler,
            "plan": _plan(self) if self.legs else None,
            "error": self.error,
            "profiles": [
                _profile(run, self.matches, terms[number] if terms else None) for number, run in enumerate(self.runs)
            ],
        }


def match_json(match: Match) -> dict[str, Any]:
    return {
        "expected_hit": match.expected_hit,
        "match": {"gpu": match.gpu, "cpu": match.cpu, "storage": match.storage, "source": str(match.source)},
    }


def _plan(decision: Decision) -> dict[str, Any]:
    """``others``: the endpoints of legs of other kinds, by kind. They and ``costs`` are left out where there are none,
    and how the KV goes over where it does not."""
    others = dict(decision.legs)
    plan: dict[str, Any] = {DECODE: others.pop(DECODE), PREFILL: others.pop(PREFILL, None), "reason": decision.reason}
    if others:
        plan["others"] = others
    if decision.costs:
        plan["costs"] = dict(decision.costs)
    if plan[PREFILL] is not None:
        plan |= {"connector": decision.connector, "strict": decision.strict}
    return plan


def _profile(run: ProfileRun, matches: Mapping[int, Match], terms: Terms | None) -> dict[str, Any]:
    """One run of a profile: its candidates best first, then those that filters removed.

    A scorer that failed is named with the kind of its error: the error's text is a plugin's own, and for the log.
    """
    removed_by = {name: by for by, names in run.removed for name in names}
    scores, roster = run.scores(), run.roster
    candidates = []
    for name, slot in zip(roster.names, roster.slots, strict=True):
        candidate: dict[str, Any] = {"endpoint": name, **match_json(matches.get(slot, NO_MATCH))}
        if name in removed_by:
            candidate["removed_by"] = removed_by[name]
        elif name in scores:
            candidate["score"], candidate["scores"] = scores[name]
            if terms and terms.get(name):
                candidate["terms"] = terms[name]
        candidates.append(candidate)
    candidates.sort(key=lambda candidate: (-candidate.get("score", -1.0), candidate["endpoint"] != run.picked))
    return {
        "profile": run.profile,
        "filters": [{"filter": name, "removed": list(names)} for name, names in run.removed],
        "scorers": dict(run.weights),
        "failed_scorers": {name: why.partition(":")[0] for name, why in run.silent.items()},
        "candidates": candidates,
        "picked": run.picked,
    }
