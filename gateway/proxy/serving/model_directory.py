"""The names that clients use: models, aliases and adapters, and what serves each."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from gateway.api.settings import SessionSettings, SloSettings
from gateway.errors import NO_ENDPOINT_RETRY, NoEndpoint, NotFound
from gateway.fleet.fleet import Fleet
from gateway.fleet.load.demand import DemandMeter
from gateway.flow.admission import Admission
from gateway.flow.standby import Needs, Standby
from gateway.framework import Endpoint, Request, Role
from gateway.framework.fleet import Model
from gateway.kvcache.index.cache_index import CacheIndex
from gateway.proxy.serving.kept_responses import kept_at
from gateway.proxy.upstream.legs import RetryBudget
from gateway.tenants.identity import ANYONE, Caller
from gateway.tokens.tokenizer import ModelTokens

ANY_NAME = "*"
"""An alias: all names that its engines serve; all that nothing else has, while none has said which it serves."""

NONE_FAILED: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ModelRuntime:
    """A model and what is its own in each room."""

    model: Model
    tokens: ModelTokens
    index: CacheIndex
    admission: Admission
    standby: Standby
    demand: DemandMeter
    budget: RetryBudget
    slo: SloSettings = field(default_factory=SloSettings)
    session: SessionSettings = field(default_factory=SessionSettings)


class ModelDirectory:
    """Finds what a name stands for. Adapters come and go with what the engines report."""

    def __init__(self, runtimes: Sequence[ModelRuntime], fleet: Fleet, created: float) -> None:
        """``created``: seconds since the epoch, of every entry of ``entries``."""
        self._created = int(created)
        self._runtimes = runtimes
        self._fleet = fleet
        self._last: dict[str, Sequence[Endpoint]] = {}
        self._names = {name: s for s in runtimes for name in (s.model.name, *s.model.aliases)}
        self._any = self._names.pop(ANY_NAME, None)

    def find(self, name: str, caller: Caller = ANYONE) -> tuple[ModelRuntime, str | None]:
        """The model of ``name`` and, if the name is an adapter's, the adapter. Raises NotFound, also where ``caller``
        may not use it: it is not told which of the two is so."""
        runtime = self._names.get(name)
        if runtime is not None:
            if caller.unrestricted or caller.may_use(name, runtime.model.name):
                return runtime, None
        elif caller.may_use(name):
            for runtime in self._runtimes:
                if name in self._fleet.adapters(runtime.model):
                    return runtime, name
            if self._any is not None and self._serves(self._any.model, name):
                return self._any, None
        known = [one for one, its in self._names.items() if caller.may_use(one, its.model.name)]
        nearest = difflib.get_close_matches(name[:128], known, n=1)
        hint = f"; the nearest is {nearest[0]!r}" if nearest else "; GET /v1/models lists what there is"
        raise NotFound(f"The model {name[:128]!r} does not exist{hint}.", param="model")

    def _serves(self, model: Model, name: str) -> bool:
        served = [endpoint.engine.served for endpoint in self._fleet.endpoints(model)]
        return any(name in one for one in served) or not any(served)

    def only(self, caller: Caller = ANYONE) -> str | None:
        """The one model's name if there is just one, and ``caller`` may use it: what a body that names none is meant
        for."""
        name = self._runtimes[0].model.name
        return name if len(self._runtimes) == 1 and caller.may_use(name) else None

    @property
    def runtimes(self) -> Sequence[ModelRuntime]:
        return self._runtimes

    def candidates(self, model: Model, adapter: str | None, *, draining: bool = False) -> Sequence[Endpoint]:
        """Endpoints of ``model`` that could serve it; with an adapter, those whose engine has it loaded. ``draining``:
        also those that are out of use."""
        endpoints = self._fleet.by_model.get(model.name) or self._last.get(model.name, ())
        for endpoint in endpoints:
            if adapter is not None or (endpoint.draining and not draining):
                break
        else:
            return endpoints  # most times: the same sequence, which others may remember
        return [
            endpoint
            for endpoint in endpoints
            if (draining or not endpoint.draining) and (adapter is None or adapter in endpoint.engine.served)
        ]

    def eligible(self, request: Request, pinned_url: str = "", failed_on: Set[int] = NONE_FAILED) -> Sequence[Endpoint]:
        """The endpoints on which ``request`` may be placed, before any filter.

        ``pinned_url``: the URL of the only engine that can serve it; empty: any may. ``failed_on``: slots that failed
        it.

        Raises NoEndpoint.
        """
        model = request.model
        endpoints = self.candidates(model, request.adapter, draining=request.bound)
        if pinned_url:
            endpoints = kept_at(pinned_url, endpoints)
        if failed_on:
            endpoints = [endpoint for endpoint in endpoints if endpoint.slot not in failed_on]
        if not endpoints:
            if not self._fleet.endpoints(model):
                raise NoEndpoint(f"Model {model.name!r} has no endpoint at present.", retry_after=NO_ENDPOINT_RETRY)
            drained = not failed_on and any(one.draining for one in self._fleet.endpoints(model))
            why = "may be used: what could serve it is draining" if drained else "is left to try"
            raise NoEndpoint(f"No endpoint of model {model.name!r} {why}.", retry_after=NO_ENDPOINT_RETRY)
        return endpoints

    def usable(self, model: Model, needs: Needs) -> bool:
        """Whether ``model`` has an endpoint that may answer a request with these needs now."""
        candidates = self.candidates(model, needs.adapter, draining=needs.bound)
        return any(endpoint.engine.up and endpoint.role is not Role.PREFILL for endpoint in candidates)

    def why_unusable(self, model: Model) -> str:
        """Why no endpoint of ``model`` may be used, in words: how many are out for which reason."""
        reasons = Counter(
            "draining" if one.engine.up else one.engine.down_reason
            for one in self._fleet.endpoints(model)
            if one.draining or not one.engine.up
        )
        return ", ".join(f"{reason} {count}" for reason, count in reasons.items()) or "it has none that answers"

    def longest_context(self, model: Model) -> int | None:
        """The longest context, in tokens, of an engine of ``model``; None where one does not tell its own."""
        longest = 0
        for endpoint in self._fleet.endpoints(model):
            served = endpoint.engine.served.get(self._fleet.served_name(endpoint, model))
            if served is None or served.max_model_len is None:
                return None
            longest = max(longest, served.max_model_len)
        return longest or None

    def keep_last_endpoints(self, model: Model) -> None:
        """``model`` goes: requests that began before may still be placed where it is served now."""
        self._last.setdefault(model.name, tuple(self._fleet.endpoints(model)))

    def entries(self, caller: Caller = ANYONE) -> list[dict[str, Any]]:
        """What ``GET /v1/models`` lists: every name that ``find`` finds, with what the engines say of it."""
        entries: list[dict[str, Any]] = []
        for runtime in self._runtimes:
            model = runtime.model
            served = [
                engine_model
                for endpoint in self._fleet.endpoints(model)
                if (engine_model := endpoint.engine.served.get(self._fleet.served_name(endpoint, model)))
            ]
            lengths = [m.max_model_len for m in served if m.max_model_len is not None]
            shortest = min(lengths) if lengths else None
            root = next((m.root for m in served if m.root), None)
            own = {"created": self._created, "max_model_len": shortest}
            if caller.may_use(model.name):
                entries.append({"id": model.name, "root": root, **own})
            entries += [
                {"id": name, "root": model.name, **own}
                for name in model.aliases
                if name != ANY_NAME and caller.may_use(name, model.name)
            ]
            entries += [
                {"id": name, "root": adapter.root, "parent": model.name, **own}
                for name, adapter in self._fleet.adapters(model).items()
                if name not in self._names and caller.may_use(name)
            ]
        return entries

    def readiness(self) -> dict[str, dict[str, Any]]:
        """Per model: whether requests may come, which they also may where they stand by for an endpoint; endpoints in
        all, and those usable now, with the reason of the others; how its prompts become tokens, and why not exactly;
        the share of its last prompts that were exact; which endpoints make other tokens of them."""
        report = {}
        for runtime in self._runtimes:
            endpoints = self._fleet.endpoints(runtime.model)
            usable = [e for e in endpoints if e.engine.up and not e.draining]
            answering = [e for e in usable if e.role != Role.PREFILL]
            report[runtime.model.name] = {
                "ready": bool(answering) or runtime.standby.holds,
                "tokens": runtime.tokens.state,
                "exact": runtime.tokens.share,
                "differing": {
                    name: "; ".join(map(str, why)) for name, why in runtime.tokens.parity.differences.items()
                },
                "endpoints": len(endpoints),
                "usable": len(usable),
                "unusable": {
                    e.name: "draining" if e.engine.up else e.engine.down_reason for e in endpoints if e not in usable
                },
            }
        return report
