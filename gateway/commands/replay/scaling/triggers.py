"""What an autoscaler may follow: how many engines each signal asks for.

A trigger is written ``NAME`` or ``NAME:THRESHOLD``, as KEDA and HPA take them:

    wanted        the engines that kvgate wants for the objectives (``fleet.load.wanted``)
    running:16    requests in flight, so many for each engine: llm-d's ``request_running``
    queue:1       requests that wait in engines, so many for each engine; and 16 in flight: llm-d's two together
    kv:0.7        the mean share of KV memory in use; engines in proportion to it
    fixed:8       always so many
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from gateway.commands.replay.pairs import number
from gateway.config.origin import nearest
from gateway.errors import ConfigError

TOLERANCE = 0.1
"""Of a ratio: nearer to 1 than this, an HPA changes nothing."""

RUNNING = 16.0
"""Requests in flight on an engine: llm-d's recommendation."""


class Figures(NamedTuple):
    """What a monitoring system sees. ``engines``: those that run or start. ``wanted``: by kvgate. ``in_flight``,
    ``waiting``: requests in all engines, and those of them that have not begun. ``kv``: 0..1, mean over engines."""

    engines: int
    wanted: int
    in_flight: int
    waiting: int
    kv: float


def _wanted(figures: Figures, threshold: float) -> int:
    return ceil(figures.wanted / threshold)


def _running(figures: Figures, threshold: float) -> int:
    return ceil(figures.in_flight / threshold)


def _queue(figures: Figures, threshold: float) -> int:
    return max(ceil(figures.waiting / threshold), ceil(figures.in_flight / RUNNING))


def _kv(figures: Figures, threshold: float) -> int:
    ratio = figures.kv / threshold
    return figures.engines if abs(ratio - 1) <= TOLERANCE else ceil(figures.engines * ratio)


def _fixed(figures: Figures, threshold: float) -> int:
    return ceil(threshold)


KINDS: Mapping[str, tuple[Callable[[Figures, float], int], float]] = {
    "wanted": (_wanted, 1.0),
    "running": (_running, RUNNING),
    "queue": (_queue, 1.0),
    "kv": (_kv, 0.7),
    "fixed": (_fixed, 8.0),
}
"""By name: how many engines it asks for, and its usual threshold."""

USUAL = "wanted,running:16,running:32,running:64,queue:1,kv:0.7"


@dataclass(frozen=True, slots=True)
class Trigger:
    kind: str
    threshold: float

    @property
    def name(self) -> str:
        return self.kind if self.kind == "wanted" else f"{self.kind}:{self.threshold:g}"

    def desired(self, figures: Figures) -> int:
        """Engines that it asks for; the autoscaler bounds them."""
        return KINDS[self.kind][0](figures, self.threshold)


def triggers(text: str) -> tuple[Trigger, ...]:
    """Read ``wanted,running:32``. Raises ConfigError."""
    return tuple(dict.fromkeys(_trigger(part.strip()) for part in text.split(",") if part.strip()))


def _trigger(text: str) -> Trigger:
    kind, colon, threshold = text.partition(":")
    if kind not in KINDS:
        raise ConfigError(f"--scale: there is no {kind!r}{nearest(kind, KINDS)}; one of {', '.join(KINDS)}")
    value = number("--scale", threshold) if colon else KINDS[kind][1]
    if not value > 0:
        raise ConfigError(f"--scale: the threshold of {text!r} must be above 0")
    return Trigger(kind, value)
