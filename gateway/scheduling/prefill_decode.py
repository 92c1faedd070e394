"""The handler ``prefill-decode``: the prompt is computed on one engine, the answer on another.

What it does
    Runs the decode profile over the endpoints that may decode, and takes the best. If that one would have to compute
    ``threshold`` tokens of the prompt or more, it runs the prefill profile over the endpoints that pair with it, and
    plans two legs. An endpoint pairs if it may prefill, is on another engine of the same version (an unknown one only
    with an unknown one: vLLM's connectors refuse any other), and has the same values of the labels ``same``. Those that
    also agree in the labels ``prefer`` go first; the others are asked only where the profile leaves none of them.
    Otherwise the chosen endpoint serves the request, whole, and the plan's reason says why; but where it must not
    (``strict``, or ``connector: sglang``), the best of the endpoints that do have a pair is taken instead:

    ``no-decode``: nothing is generated. ``n``, ``beam-search``, ``echo``, ...: see ``gateway.api.indivisible``.
    ``short``: fewer tokens than ``threshold``. ``version``: all that would pair run another version.
    ``no-prefill-endpoint``: none pairs, or the prefill profile leaves none.

Scheduling intent
    A long prefill slows every answer that runs beside it on one engine. Its own engine keeps that out of the time
    between tokens, for the price of a second leg and of moving the KV.

Inputs
    ``role``, ``engine.version``, ``labels``; ``kind``, ``indivisible``, ``matches`` and ``prompt_tokens`` of the
    request. Of an estimated prompt (``exact`` is false) the tokens are a quarter of its bytes, JSON included.

Parameters
    ``prefill`` (default ``prefill``), ``decode`` (default ``decode``): the profiles' names.
    ``threshold`` (default 512): tokens, see ``THRESHOLD``. 0 always plans two legs.
    ``same`` (default none): labels that must be equal on both, such as the rail or the zone that their KV can cross.
    Endpoints that both lack one agree.
    ``prefer`` (default none): labels that should be.
    ``connector`` (default ``nixl``): what the engines move KV with: ``nixl``, ``mooncake``, ``sglang`` or
    ``shared-storage``. SGLang's engines generate nothing alone: with it all that generates is split, or fails.
    ``strict`` (default ``false``): where a separate prefill would pay and cannot be had on any pair, or fails, the
    request fails.

Example
    ``handlers: [{name: prefill-decode, type: prefill-decode, parameters: {threshold: 1024, same: [zone]}}]``
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from gateway.errors import NoEndpoint
from gateway.framework import GENERATES, Context, Endpoint, Engine, Plan, Request, Role, RunProfile
from gateway.scheduling.profile import RETRY_AFTER

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
        threshold: int = THRESHOLD
        same: tuple[str, ...] = ()
        prefer: tuple[str, ...] = ()
        connector: Literal["nixl", "mooncake", "sglang", "shared-storage"] = "nixl"
        strict: bool = False

        def __post_init__(self) -> None:
            if self.threshold < 0:
                raise ValueError("threshold must be at least 0 tokens")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self.parameters = parameters
        self.profiles = (parameters.decode, parameters.prefill)

    def plan(self, request: Request, endpoints: Sequence[Endpoint], run: RunProfile, /) -> Plan:
        # Roles are kept here as well: a profile without their filter must not decode where no KV would ever come.
        decoders = [one for one in endpoints if one.role is not Role.PREFILL]
        prefillers = [one for one in endpoints if one.role is not Role.DECODE]
        left, problem = decoders, ""
        while True:
            try:
                decode = run(self.parameters.decode, left)[0]
            except NoEndpoint as error:
                if left is decoders:
                    raise
                raise self._no_pair(request, decoders, problem) from error
            if whole := self._whole(request, decode):
                return Plan(decode, reason=whole)
            pairs, reason = self._pairs(decode, prefillers)
            try:
                if pairs:
                    prefill = self._best(decode, pairs, run)
                    return Plan(decode, prefill, "split", self.parameters.connector, self.parameters.strict)
            except NoEndpoint as error:
                problem = f" ({error})"
            if not (self.parameters.strict or self.parameters.connector in NEVER_WHOLE):
                return Plan(decode, reason=reason)
            # The best to decode may be the first of a new version, or alone in its zone: another has its pair.
            spent = set(pairs)
            prefillers = [one for one in prefillers if one not in spent]
            left = self._pairable(left, prefillers)
            if not left:
                raise self._no_pair(request, decoders, problem)

    def _whole(self, request: Request, decode: Endpoint) -> str:
        """Why ``decode`` should serve all of it, whoever else there is; empty: a separate prefill pays."""
        if request.kind not in GENERATES:
            return "no-decode"
        if self.parameters.connector in NEVER_WHOLE:
            return ""
        if request.indivisible:
            return request.indivisible
        return "short" if request.new_tokens(decode) < self.parameters.threshold else ""

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
        return (one.engine.version, *(one.labels.get(label) for label in self.parameters.same))

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
