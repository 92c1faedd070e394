"""The handler ``prefill-decode``: the prompt is computed on one engine, the answer on another.

What it does
    Runs the decode profile over the endpoints that may decode, then the prefill profile over those that pair with one
    of them, and plans what is cheapest: one of the best that may decode alone, or one of the best pairs, by the seconds
    of ``gateway.scheduling.split_cost``. An endpoint pairs if it may prefill, is on another engine of the same version
    (an unknown one only with an unknown one: vLLM's connectors refuse any other), and has the same values of the labels
    ``same``. Those that also agree in the labels ``prefer`` go first; the others count only where the profile leaves
    none of them. The plan's reason says what it is:

    ``split``: two legs. ``cheaper-whole``: the endpoint alone costs less than any pair.
    ``no-decode``: nothing is generated. ``n``, ``beam-search``, ``echo``, ...: see ``gateway.api.indivisible``.

    By ``threshold``, and wherever costs are not known or there is nobody to compare with: takes the best of the decode
    profile. If that one would have to compute ``threshold`` tokens of the prompt or more, the best of the prefill
    profile that pairs with it computes the prompt. Otherwise it serves the request, whole, and the reason says why; but
    where it must not (``strict``, or ``connector: sglang``), the best of the endpoints that do have a pair is taken:

    ``short``: fewer tokens than ``threshold``. ``version``: all that would pair run another version.
    ``no-prefill-endpoint``: none pairs, or the prefill profile leaves none.

Scheduling intent
    A long prefill slows every answer that runs beside it on one engine. Its own engine keeps that out of the time
    between tokens, for the price of a second leg and of moving the KV. What that is worth depends on how many are being
    answered, how long the queues are and how fast KV moves: no number of tokens is right for a quiet and a busy hour.

Inputs
    ``role``, ``engine.version``, ``labels``; ``load``, ``cost``, ``metrics.recent_transfers``; ``kind``,
    ``indivisible``, ``matches``, ``expected_output``, ``prompt_tokens`` and ``ahead`` of the request. Of an estimated
    prompt (``exact`` is false) the tokens are a quarter of its bytes, JSON included.

Parameters
    ``prefill`` (default ``prefill``), ``decode`` (default ``decode``): the profiles' names.
    ``decide`` (default: ``cost``, but ``threshold`` where ``threshold`` is given): what whether to split is decided by.
    ``threshold`` (default 512): tokens, see ``THRESHOLD``. 0 always plans two legs.
    ``same`` (default none): labels that must be equal on both, such as the rail or the zone that their KV can cross.
    Endpoints that both lack one agree.
    ``prefer`` (default none): labels that should be.
    ``connector`` (default ``nixl``): what the engines move KV with: ``nixl``, ``mooncake``, ``sglang`` or
    ``shared-storage``. SGLang's engines generate nothing alone: with it all that generates is split, or fails.
    ``strict`` (default ``false``): the request fails if a separate prefill would pay, but no pair is usable or the
    prefill fails.

    Of the costs:
    ``best`` (default 8): of each profile's ranking, how many are compared: up to 64 pairs take some 30 us. 1 leaves who
    decodes and who prefills to the profiles, and only whether to split to the costs.
    ``lam`` (default null: by the objectives), ``reuse`` (default 0.5): as in ``placement-cost``: the weight of what
    others suffer, and how likely what is pushed out of a cache would have been asked for again.
    ``leg`` (default 0.01): seconds that a second leg takes beyond its work: a connection, and the prompt's tokens once
    more.
    ``kv_bytes`` (default: learned, 327680 until then): bytes of a token's KV.
    ``rate`` (default 25e9): bytes a second at which KV comes in: one link of 200 Gbit/s. With NIXL it is learned: this
    is where it starts, and where it returns to when nothing has been moved for a while.
    ``workers`` (default 1): GPUs of an engine that move KV at once (its tensor parallel size): vLLM adds their times.

Example
    ``handlers: [{name: prefill-decode, type: prefill-decode, parameters: {rate: 3.0e9, same: [zone]}}]``
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal

from gateway.errors import NoEndpoint
from gateway.framework import GENERATES, Context, Endpoint, Engine, Plan, Request, Role, RunProfile
from gateway.framework.request import NO_COSTS
from gateway.scheduling.profile import RETRY_AFTER
from gateway.scheduling.split_cost import Answering, Assumptions, Computing, SplitCost, known

THRESHOLD = 512
"""Tokens. A 70B model on four H100 computes one in 79 us, so 512 stall every answer that runs beside them for 40 ms:
about two steps, and above the 10 to 20 ms that a second leg and the moving of the KV cost the request itself."""

NEVER_WHOLE = frozenset({"sglang"})
"""Connectors whose engines generate nothing without a partner: what generates is split, whatever its length and form,
or fails. The rest is never split. SGLang hands over no KV of embeddings and the like (its own router refuses them
before disaggregated engines, and so does an engine that generates), and tokenizes before its scheduler comes in."""


class PrefillDecode:
    """Two legs where that pays. ``profiles``: those it runs, which wiring checks."""

    @dataclass(frozen=True, slots=True)
    class Parameters:
        prefill: str = "prefill"
        decode: str = "decode"
        decide: Literal["cost", "threshold"] | None = None
        threshold: int | None = None
        same: tuple[str, ...] = ()
        prefer: tuple[str, ...] = ()
        connector: Literal["nixl", "mooncake", "sglang", "shared-storage"] = "nixl"
        strict: bool = False
        best: int = 8
        lam: float | None = None
        reuse: float = 0.5
        leg: float = 0.01
        kv_bytes: int | None = None
        rate: float = 25e9
        workers: int = 1

        def __post_init__(self) -> None:
            if self.tokens < 0:
                raise ValueError("threshold must be at least 0 tokens")
            for name, least in (("best", 1), ("workers", 1), ("kv_bytes", 1), ("lam", 0), ("leg", 0)):
                if (value := getattr(self, name)) is not None and not least <= value < inf:
                    raise ValueError(f"{name} must be at least {least}")
            if not 0 <= self.reuse <= 1:
                raise ValueError("reuse must be in 0..1")
            if not (self.rate > 0 and isfinite(self.rate)):
                raise ValueError("rate must be above 0 bytes a second")

        @property
        def tokens(self) -> int:
            return THRESHOLD if self.threshold is None else self.threshold

        @property
        def by_cost(self) -> bool:
            return self.decide == "cost" if self.decide is not None else self.threshold is None

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self.parameters = given = parameters
        self.profiles = (given.decode, given.prefill)
        self._never_whole = given.connector in NEVER_WHOLE
        self._clock = context.clock
        self._costs = SplitCost(
            Assumptions(given.lam, given.reuse, given.leg, given.kv_bytes, given.rate, given.workers)
        )

    def plan(self, request: Request, endpoints: Sequence[Endpoint], run: RunProfile, /) -> Plan:
        # Roles are kept here as well: a profile without their filter must not decode where no KV would ever come.
        decoders = [one for one in endpoints if one.role is not Role.PREFILL]
        prefillers = [one for one in endpoints if one.role is not Role.DECODE]
        ranked = run(self.parameters.decode, decoders)
        divisible = request.kind in GENERATES and (self._never_whole or not request.indivisible)
        if divisible and self.parameters.by_cost and (plan := self._cheapest(request, ranked, prefillers, run)):
            return plan
        left, problem = decoders, ""
        while True:
            decode = ranked[0]
            if whole := self._whole(request, decode):
                return Plan.of(decode, reason=whole)
            pairs, reason = self._pairs(decode, prefillers)
            try:
                if pairs:
                    return self._split(decode, self._best(decode, pairs, run))
            except NoEndpoint as error:
                problem = f" ({error})"
            if not (self.parameters.strict or self._never_whole):
                return Plan.of(decode, reason=reason)
            # The best to decode may be the first of a new version, or alone in its zone: another has its pair.
            spent = set(pairs)
            prefillers = [one for one in prefillers if one not in spent]
            left = self._pairable(left, prefillers)
            if not left:
                raise self._no_pair(request, decoders, problem)
            try:
                ranked = run(self.parameters.decode, left)
            except NoEndpoint as error:
                raise self._no_pair(request, decoders, problem) from error

    def _split(self, decode: Endpoint, prefill: Endpoint, costs: Mapping[str, float] = NO_COSTS) -> Plan:
        connector, strict = self.parameters.connector, self.parameters.strict
        return Plan.of(decode, prefill=prefill, reason="split", connector=connector, strict=strict, costs=costs)

    def _cheapest(
        self, request: Request, ranked: Sequence[Endpoint], prefillers: Sequence[Endpoint], run: RunProfile
    ) -> Plan | None:
        """Of the best that may decode, alone or with the best that pair: the least cost, at a tie the better ranked.

        None: some cost is not known, or nobody pairs where a pair might cost less.
        """
        costs, best = self._costs, self.parameters.best
        now = self._clock.monotonic()
        answering = [(one, costs.answering(request, one, now)) for one in ranked[:best]]
        if not all(known(one.alone) for _, one in answering):
            return None
        alone, seconds = min(((one, cost.alone) for one, cost in answering), key=lambda found: found[1])
        if not self._never_whole and seconds <= min(costs.at_least(cost) for _, cost in answering):
            compared = {"whole": seconds}
            return Plan.of(alone, reason="cheaper-whole", costs=compared)
        pair, together = None, inf
        for decode, prefill, cost in self._priced(request, answering, prefillers, run, now):
            if cost < together:
                pair, together = (decode, prefill), cost
        if pair is None:
            return None
        if not self._never_whole and seconds <= together:
            compared = {"whole": seconds, "split": together}
            return Plan.of(alone, reason="cheaper-whole", costs=compared)
        compared = {"split": together, "whole": seconds}
        return self._split(*pair, compared)

    def _priced(
        self,
        request: Request,
        answering: Sequence[tuple[Endpoint, Answering]],
        prefillers: Sequence[Endpoint],
        run: RunProfile,
        now: float,
    ) -> Iterator[tuple[Endpoint, Endpoint, float]]:
        """Who decodes, who prefills and what it costs: of each that decodes the best ranked few that pair with it."""
        side, best = self._side, self.parameters.best
        sides = [side(decode) for decode, _ in answering]
        wanted = set(sides)
        pairable = [one for one in prefillers if side(one) in wanted]
        if len(answering) == 1:
            pairable = [one for one in pairable if one.engine is not answering[0][0].engine]
        if not pairable:
            return
        try:
            ranked = run(self.parameters.prefill, pairable)
        except NoEndpoint:
            return
        by_side: dict[tuple[str | None, ...], list[Endpoint]] = {}
        near: dict[tuple[str | None, ...], list[Endpoint]] = {}
        for one in ranked:
            of_one = side(one)
            by_side.setdefault(of_one, []).append(one)
            if self.parameters.prefer:
                near.setdefault((*of_one, *self._wishes(one)), []).append(one)
        computing: dict[int, Computing] = {}
        for (decode, cost), of_decode in zip(answering, sides, strict=True):
            engine = decode.engine
            others = [one for one in near.get((*of_decode, *self._wishes(decode)), ()) if one.engine is not engine]
            if not others:
                others = [one for one in by_side.get(of_decode, ()) if one.engine is not engine]
            for prefill in others[:best]:
                found = computing.get(prefill.slot)
                if found is None:
                    found = computing[prefill.slot] = self._costs.computing(request, prefill, now)
                seconds = self._costs.pair(found, cost)
                if known(seconds):
                    yield decode, prefill, seconds

    def _whole(self, request: Request, decode: Endpoint) -> str:
        """Why ``decode`` should serve all of it, whoever else there is; empty: a separate prefill pays."""
        if request.kind not in GENERATES:
            return "no-decode"
        if self._never_whole:
            return ""
        if request.indivisible:
            return request.indivisible
        return "short" if request.new_tokens(decode) < self.parameters.tokens else ""

    def _pairs(self, decode: Endpoint, prefillers: Sequence[Endpoint]) -> tuple[list[Endpoint], str]:
        """Who may prefill for ``decode``, and the reason for a plan without any of them."""
        near = [
            one for one in prefillers if one.engine is not decode.engine and _agree(one, decode, self.parameters.same)
        ]
        pairs = [one for one in near if one.engine.version == decode.engine.version]
        return pairs, "version" if near and not pairs else "no-prefill-endpoint"

    def _pairable(self, decoders: Sequence[Endpoint], prefillers: Sequence[Endpoint]) -> list[Endpoint]:
        """Those of ``decoders`` for which ``_pairs`` has any of ``prefillers``: each is looked at once only."""
        engines: dict[tuple[str | None, ...], set[Engine]] = {}
        for one in prefillers:
            engines.setdefault(self._side(one), set()).add(one.engine)
        return [one for one in decoders if engines.get(self._side(one), set()) - {one.engine}]

    def _side(self, one: Endpoint) -> tuple[str | None, ...]:
        """What is equal in all that pair."""
        version, same = one.engine.version, self.parameters.same
        return (version, *(one.labels.get(label) for label in same)) if same else (version,)

    def _wishes(self, one: Endpoint) -> tuple[str | None, ...]:
        """What should be."""
        return tuple(one.labels.get(label) for label in self.parameters.prefer)

    def _best(self, decode: Endpoint, pairs: Sequence[Endpoint], run: RunProfile) -> Endpoint:
        """Raises NoEndpoint where the prefill profile leaves none of ``pairs``."""
        preferred = [one for one in pairs if _agree(one, decode, self.parameters.prefer)]
        if preferred and len(preferred) < len(pairs):
            with suppress(NoEndpoint):
                return run(self.parameters.prefill, preferred)[0]
        return run(self.parameters.prefill, pairs)[0]

    def _no_pair(self, request: Request, decoders: Sequence[Endpoint], problem: str) -> NoEndpoint:
        alike = " and ".join(f"the same {name}" for name in ("version", *self.parameters.same))
        return NoEndpoint(
            f"no two endpoints of model {request.model.name!r} can share the request, which none may serve alone: none "
            f"of the {len(decoders)} that may decode has a usable one to prefill for it, on another engine of {alike}"
            f"{problem}",
            retry_after=RETRY_AFTER,
        )


def _agree(one: Endpoint, other: Endpoint, labels: Sequence[str]) -> bool:
    return all(one.labels.get(label) == other.labels.get(label) for label in labels)
