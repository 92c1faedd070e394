"""Faults on demand: what an engine does wrong, to which requests, and how many times.

A fault is taken by a request when its body has been read, so that it is on record as received. Knows nothing of
sockets: ``simulator.sink`` and ``simulator.server`` act on it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from simulator.transfer.parameters import Leg


class FaultKind(StrEnum):
    REFUSE = "refuse"  # connections are refused for ``seconds``; 0: until cleared
    HANG = "hang"  # no head comes, ever
    SLOW = "slow"  # the head comes ``seconds`` later
    DROP = "drop"  # the connection is closed before the head
    GARBAGE = "garbage"  # bytes that are not HTTP
    STATUS = "status"  # ``status`` with ``body``
    ADMISSION = "admission"  # 503 as vLLM's queue limit answers it
    ERROR_EVENT = "error-event"  # 200, and the first event is an error; unstreamed: 500
    HANG_AFTER = "hang-after"  # nothing more comes after ``events`` events; unstreamed: after half of the body
    CLOSE_AFTER = "close-after"  # the connection is closed after ``events`` events; unstreamed: after half of the body
    TRICKLE = "trickle"  # every event comes in pieces of ``events`` bytes, ``seconds`` apart
    DIE = "die"  # the engine is gone, and every connection with it
    NO_PARAMS = "no-params"  # a prefill leg's answer has no ``kv_transfer_params``
    LESS_PARAMS = "less-params"  # they lack ``fields``
    WRONG_PARAMS = "wrong-params"  # ``fields`` of them are of another type; none named: all
    KV_HANG = "kv-hang"  # a decode leg's KV never comes
    KV_FAIL = "kv-fail"  # its load fails


LEGS = {
    FaultKind.NO_PARAMS: Leg.PREFILL,
    FaultKind.LESS_PARAMS: Leg.PREFILL,
    FaultKind.WRONG_PARAMS: Leg.PREFILL,
    FaultKind.KV_HANG: Leg.DECODE,
    FaultKind.KV_FAIL: Leg.DECODE,
}
"""The kinds that only one leg can meet."""


@dataclass(slots=True)
class Fault:
    """``times``: requests that it still befalls; None: all. ``path``: only requests whose path begins with it; None:
    every POST. ``leg``: only that leg of split requests; None: any request. ``seconds``, ``events``, ``status``,
    ``body`` and ``fields`` are what the kind makes of them.
    """

    kind: FaultKind
    times: int | None = None
    path: str | None = None
    leg: Leg | None = None
    events: int = 1
    seconds: float = 0.0
    status: int = 500
    body: str = field(default_factory=lambda: json.dumps({"error": {"message": "injected", "type": "Injected"}}))
    fields: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.kind = FaultKind(self.kind)
        self.leg = LEGS.get(self.kind) if self.leg is None else Leg(self.leg)
        self.fields = tuple(self.fields)
        if self.times is not None and self.times < 1:
            raise ValueError("times must be at least 1, or null for always")
        if self.events < 0 or self.seconds < 0:
            raise ValueError("events and seconds must be at least 0")
        if not 100 <= self.status <= 599:
            raise ValueError("status must be in 100..599")

    def befalls(self, method: str, path: str, leg: Callable[[], Leg | None]) -> bool:
        if not (method == "POST" if self.path is None else path.startswith(self.path)):
            return False
        return self.leg is None or self.leg is leg()

    def spoil(self, params: Mapping[str, Any]) -> dict[str, Any] | None:
        """A prefill leg's parameters as this fault leaves them."""
        match self.kind:
            case FaultKind.NO_PARAMS:
                return None
            case FaultKind.LESS_PARAMS:
                return {name: value for name, value in params.items() if name not in self.fields}
            case FaultKind.WRONG_PARAMS:
                spoiled = self.fields or tuple(params)
                return {
                    name: (7 if isinstance(value, str) else "wrong") if name in spoiled else value
                    for name, value in params.items()
                }
            case _:
                return dict(params)


class Faults:
    """The faults in force, oldest first. Each request takes at most one. Only a started server can refuse."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self.refuse: Callable[[float], None] = lambda seconds: None
        self.accept: Callable[[], None] = lambda: None

    def inject(self, kind: FaultKind | str, **options: Any) -> Fault:
        """Add a fault; ``options`` are the fields of Fault. Raises ValueError for an unknown kind or option."""
        allowed = {item.name for item in fields(Fault)} - {"kind"}
        if unknown := set(options) - allowed:
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}; allowed: {', '.join(sorted(allowed))}")
        fault = Fault(FaultKind(kind), **options)
        if fault.kind is FaultKind.REFUSE:
            self.refuse(fault.seconds)
        else:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """No faults any more; connections are accepted again."""
        self._faults.clear()
        self.accept()

    def take(self, method: str, path: str, leg: Callable[[], Leg | None] = lambda: None) -> Fault | None:
        """The fault that this request meets, counted. ``leg`` is asked only where a fault wants to know."""
        for fault in self._faults:
            if fault.befalls(method, path, leg):
                if fault.times is not None:
                    fault.times -= 1
                    if not fault.times:
                        self._faults.remove(fault)
                return fault
        return None

    def __len__(self) -> int:
        return len(self._faults)
