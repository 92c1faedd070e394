"""Faults on demand: what an engine does wrong, to which requests, and how many times.

A fault is taken by a request when its body has been read, so that it is on record as received. Knows nothing of
sockets: ``simulator.sink`` and ``simulator.server`` act on it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any


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


@dataclass(slots=True)
class Fault:
    """``times``: requests that it still befalls; None: all. ``path``: only requests whose path begins with it; None:
    every POST. ``seconds``, ``events``, ``status`` and ``body`` are what the kind makes of them.
    """

    kind: FaultKind
    times: int | None = None
    path: str | None = None
    events: int = 1
    seconds: float = 0.0
    status: int = 500
    body: str = field(default_factory=lambda: json.dumps({"error": {"message": "injected", "type": "Injected"}}))

    def __post_init__(self) -> None:
        self.kind = FaultKind(self.kind)
        if self.times is not None and self.times < 1:
            raise ValueError("times must be at least 1, or null for always")
        if self.events < 0 or self.seconds < 0:
            raise ValueError("events and seconds must be at least 0")
        if not 100 <= self.status <= 599:
            raise ValueError("status must be in 100..599")

    def befalls(self, method: str, path: str) -> bool:
        return method == "POST" if self.path is None else path.startswith(self.path)


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

    def take(self, method: str, path: str) -> Fault | None:
        """The fault that this request meets, counted."""
        for fault in self._faults:
            if fault.befalls(method, path):
                if fault.times is not None:
                    fault.times -= 1
                    if not fault.times:
                        self._faults.remove(fault)
                return fault
        return None

    def __len__(self) -> int:
        return len(self._faults)
