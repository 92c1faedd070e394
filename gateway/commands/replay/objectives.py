"""The objectives (TTFT, TPOT) of requests: of all, or of one class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.commands.replay.pairs import duration, pairs
from gateway.errors import ConfigError
from gateway.framework.request import Slo

USUAL = Slo(ttft=2.0, tpot=0.050)
"""The default objectives for goodput: a reader of a chat does not notice such delays."""

LONGEST = 86_400.0
"""Seconds at most, as in a request's headers."""


@dataclass(frozen=True, slots=True)
class Objectives:
    """``every``: the objectives of requests whose class has none of its own. ``classes``: the objectives by class.
    Either may be absent."""

    every: Slo | None = None
    classes: tuple[tuple[str, Slo], ...] = ()

    def asked(self, traffic: str) -> Slo | None:
        """The objectives that a client would send with a request of this class; None: none."""
        return dict(self.classes).get(traffic, self.every)

    def judged(self, traffic: str) -> Slo:
        """The objectives that goodput counts for a request of this class."""
        return self.asked(traffic) or USUAL

    def __str__(self) -> str:
        """The objectives as they were given; empty if there are none."""
        parts = [_shown(self.every)] if self.every is not None else []
        return " ".join(parts + [f"{name}:{_shown(slo)}" for name, slo in self.classes])


def objectives(texts: Sequence[str]) -> Objectives:
    """Read ``ttft=2s,tpot=50ms`` for all requests, ``CLASS:ttft=10s`` for those of a class. Raises ConfigError."""
    every: Slo | None = None
    classes: dict[str, Slo] = {}
    for text in texts:
        name, colon, rest = text.rpartition(":")
        if (colon and name in classes) or (not colon and every is not None):
            raise ConfigError(f"--slo: {f'the class {name!r} has' if colon else 'all have'} objectives already: {text}")
        slo = Slo(**{key: _seconds(value) for key, value in pairs("--slo", rest, ("ttft", "tpot")).items()})
        if colon:
            classes[name] = slo
        else:
            every = slo
    return Objectives(every, tuple(classes.items()))


def _seconds(text: str) -> float:
    found = duration(text)
    if found is None or not 0 < found <= LONGEST:
        raise ConfigError(f"--slo: {text!r} must be a time above 0 and up to a day, such as 500ms or 2s")
    return found


def _shown(slo: Slo) -> str:
    parts = [f"ttft={slo.ttft:g}s"] if slo.ttft is not None else []
    return ",".join(parts + ([f"tpot={slo.tpot * 1000:g}ms"] if slo.tpot is not None else []))
