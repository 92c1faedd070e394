"""A gateway that counts what its requests cost. ``python -m tests.support.counted CONFIG RESULT``.

It is ``kvgate serve`` in a process of its own. A request lasts from the call that brings its bytes to the call that
brings those of the next one. Each must come whole in one call, and one after the other. After ``WARM`` requests,
``COUNTED`` are counted with ``sys.setprofile``; then the loop's iterations of ``STEPPED`` more are.

Of the counted ones the faster half is reported, since timers of the gateway's own fall into the others. ``RESULT``
becomes a file with a ``Report`` as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any

from gateway.cli import main
from gateway.http1.connection import Connection
from gateway.proxy.http.connection import ClientConnection

WARM = 100
"""Requests until caches are warm and costs are learned."""
COUNTED, STEPPED = 100, 20
REQUESTS = WARM + COUNTED + STEPPED + 1
"""To be sent in all: the last one's bytes end the one before it."""

USUAL = 0.8
"""A function that is called in this share of the requests belongs to each: the others are for what is seldom done."""

ROOT = Path(__file__).parents[2]
STDLIB = Path(sysconfig.get_paths()["stdlib"])


@dataclass(frozen=True)
class Report:
    """``functions``: by file, those called in at least ``USUAL`` of the requests. ``calls``: of them all together, the
    median request's. ``iterations``: of the event loop, from the one that brought a request's bytes to the one that
    wrote to its engine, for each of the ``STEPPED``."""

    functions: dict[str, list[str]]
    calls: int
    iterations: list[int]


@dataclass
class Request:
    """``calls``: of each code object, by its id."""

    began: float
    seconds: float = 0.0
    calls: Counter[int] = field(default_factory=Counter)


class Counts:
    """``codes``: each code object that was called, by its id, and its name: two of equal text are two functions."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.iterations: list[int] = []
        self.codes: dict[int, tuple[CodeType, str, str]] = {}
        self._seen = 0
        self._iteration = 0
        self._arrived: int | None = None

    def arrived(self, result: Path) -> None:
        """A request's bytes are here."""
        self._seen += 1
        sys.setprofile(None)
        now = time.perf_counter()
        if self.requests and not self.requests[-1].seconds:
            self.requests[-1].seconds = now - self.requests[-1].began
        if WARM < self._seen <= WARM + COUNTED:
            self.requests.append(Request(time.perf_counter()))
            sys.setprofile(self._called)
        elif self._seen == REQUESTS:
            _write(self.report(), result)
        elif self._seen > WARM + COUNTED:
            if self._seen == WARM + COUNTED + 1:
                self._next_iteration()
            self._arrived = self._iteration

    def sent(self) -> None:
        """A request is written to its engine."""
        if self._arrived is not None:
            self.iterations.append(self._iteration - self._arrived)
            self._arrived = None

    def report(self) -> Report:
        faster = sorted(self.requests, key=lambda request: request.seconds)[: COUNTED // 2]
        shared = Counter(code for request in faster for code in request.calls)
        usual = [code for code, count in shared.items() if count >= USUAL * len(faster)]
        functions: dict[str, list[str]] = {}
        for _, file, name in sorted((self.codes[code] for code in usual), key=lambda known: known[1:]):
            functions.setdefault(file, []).append(name)
        calls = median(sum(request.calls[code] for code in usual) for request in faster)
        return Report(functions, round(calls), self.iterations)

    def _called(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code.co_filename == __file__:
            return
        if id(code) not in self.codes:
            self.codes[id(code)] = code, _file(code), _name(frame)
        self.requests[-1].calls[id(code)] += 1

    def _next_iteration(self) -> None:
        self._iteration += 1
        if self._seen < REQUESTS:
            asyncio.get_running_loop().call_soon(self._next_iteration)


def _file(code: CodeType) -> str:
    path = Path(code.co_filename)
    for folder in (Path(sysconfig.get_paths()["purelib"]), ROOT, STDLIB):
        if path.is_relative_to(folder):
            return str(path.relative_to(folder))
    return code.co_filename


def _name(frame: FrameType) -> str:
    """With the class that it makes, where ``dataclass`` or ``NamedTuple`` has written the function."""
    if frame.f_code.co_filename != "<string>":
        return frame.f_code.co_qualname
    made = frame.f_locals.get("_cls") or type(frame.f_locals.get("self"))
    return f"{made.__qualname__}.{frame.f_code.co_name}"


def _write(report: Report, result: Path) -> None:
    unfinished = result.with_suffix(".part")
    unfinished.write_text(json.dumps(asdict(report)))
    os.replace(unfinished, result)


def _before(owner: type, name: str, call: Callable[..., None]) -> None:
    """Have ``call`` called before each call of the method, with its arguments."""
    real = getattr(owner, name)

    def both(*arguments: Any) -> None:
        call(*arguments)
        real(*arguments)

    setattr(owner, name, both)


def run(config: str, result: Path) -> None:
    counts = Counts()

    def arrived(connection: ClientConnection, data: bytes) -> None:
        if data.startswith(b"POST "):  # aiohttp calls it without bytes as well
            counts.arrived(result)

    _before(ClientConnection, "data_received", arrived)
    _before(Connection, "send", lambda *_: counts.sent())
    sys.exit(main(["serve", config]))


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
