"""Endpoints, requests and contexts as plain values: what plugins are tested with."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.core.clock import ManualClock
from gateway.core.observer import Observer
from gateway.framework import Context, Endpoint, Engine, Kind, Request, Role, Scalars
from gateway.framework.cost import STALE, Rates, Sums
from gateway.framework.fleet import EngineMetrics, Model
from gateway.framework.match import Match, Matches


@dataclass(slots=True)
class Work:
    """A ledger's view, set by hand."""

    requests: int = 0
    prefill_tokens: int = 0
    prefill_attention: float = 0.0
    prefill_done: float = 0.0
    kv_tokens: int = 0
    foreign_requests: float = 0.0
    foreign_kv_tokens: float = 0.0
    share: float = 0.0
    cost: Physics | None = None

    @property
    def own_requests(self) -> int:
        return self.requests

    @property
    def own_tokens(self) -> tuple[int, int]:
        return self.prefill_tokens, self.kv_tokens

    @property
    def rates(self) -> Rates:
        return STALE

    def rates_at(self, now: float) -> Rates:
        """By the formula of ``Scalars``, in figures that may have been set to anything since."""
        running, waiting, attention, done, kv_tokens, share = self.sums(now)
        cost = (self.cost or Physics()).scalars
        batch = cost.step_request * running + cost.kv_token * kv_tokens
        queued = waiting * cost.prefill_token + attention * cost.prefill_quadratic if waiting else 0.0
        return Rates(
            until=now,
            fixed=cost.overhead + (1 + waiting / cost.step_tokens) * batch,
            new_token=batch / cost.step_tokens,
            output_token=cost.step + batch,
            running=running,
            prefill_token=cost.prefill_token,
            prefill_quadratic=cost.prefill_quadratic,
            waiting=waiting,
            queued=queued,
            begun=now - 1.0,
            pace=done,
            most_done=done,
            share=share,
            share_at=now,
        )

    def sums(self, now: float) -> Sums:
        requests, kv_tokens = self.requests + self.foreign_requests, self.kv_tokens + self.foreign_kv_tokens
        return requests, self.prefill_tokens, self.prefill_attention, self.prefill_done, kv_tokens, self.share


@dataclass(slots=True)
class Physics:
    """A cost model with round figures: 1 ms a new token, steps of 20 ms and 1 ms each; attention for nothing."""

    prefill_token: float = 1e-3
    prefill_quadratic: float = 0.0
    step: float = 0.020
    step_request: float = 0.001
    kv_token: float = 1e-6
    overhead: float = 0.0
    cpu_fetch: float = 1.6e-6
    storage_fetch: float = 25.6e-6
    step_tokens: int = 8192

    @property
    def scalars(self) -> Scalars:
        return Scalars(*(getattr(self, name) for name in self.__dataclass_fields__))


class Notes(Observer):
    """Remembers what plugins did wrong."""

    def __init__(self) -> None:
        self.failed: list[tuple[str, str, BaseException]] = []
        self.refused: list[str] = []

    def plugin_failed(self, kind: str, name: str, error: BaseException) -> None:
        self.failed.append((kind, name, error))

    def score_refused(self, name: str) -> None:
        self.refused.append(name)


MODEL = Model(name="m")


def endpoint(
    slot: int = 0,
    *,
    model: Model = MODEL,
    up: bool = True,
    warmth: float = 1.0,
    draining: bool = False,
    role: Role = Role.BOTH,
    labels: Mapping[str, str] | None = None,
    latency: float | None = None,
    metrics: EngineMetrics | None = None,
    cost: Physics | None = None,
    version: str | None = None,
    engine: Engine | None = None,
    **work: Any,
) -> Endpoint:
    """``engine``: one of its own if not given. ``work``: fields of ``Work``."""
    cost = cost or (Physics(step_request=0.0, kv_token=0.0) if role is Role.PREFILL else Physics())
    return Endpoint(
        slot=slot,
        name=f"e{slot}",
        model=model,
        engine=engine or Engine(url=f"http://e{slot}:8000", name=f"e{slot}", up=up, latency=latency, version=version),
        load=Work(**work, cost=cost),
        cost=cost,
        role=role,
        labels=labels or {},
        metrics=metrics or EngineMetrics(),
        warmth=warmth,
        draining=draining,
    )


def request(prompt_tokens: int = 1000, held: Mapping[int, int] | None = None, **fields: Any) -> Request:
    """``held``: slot -> tokens of the prompt that the endpoint there holds on its GPU."""
    matches = Matches(
        {slot: Match(gpu=tokens, expected_hit=min(tokens, prompt_tokens - 1)) for slot, tokens in (held or {}).items()}
    )
    return Request(
        **{"id": "r", "model": MODEL, "kind": Kind.CHAT, "arrived": 0.0, "prompt_tokens": prompt_tokens, **fields},
        matches=matches,
    )


def context(name: str = "plugin", *, seed: int = 0, clock: ManualClock | None = None) -> Context:
    return Context(name=name, clock=clock or ManualClock(), random=random.Random(seed))


def names(endpoints: Any) -> list[str]:
    return [one.name for one in endpoints]
