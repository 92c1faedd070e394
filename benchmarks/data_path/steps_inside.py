"""A gateway whose steps are timed: ``python -m benchmarks.data_path.steps_inside OUT CONFIG``.

SIGUSR1 begins; the next one writes to OUT, as JSON, what was seen between such pairs so far (``Told``).
"""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

import gateway.proxy.serving.director as director
import gateway.proxy.serving.front as front
import gateway.proxy.serving.reception as reception
from benchmarks.data_path.clocks import (
    AROUND,
    CALL,
    EMPTY,
    KINDS,
    Clock,
    Cost,
    Probe,
    Step,
    corrected,
    costs,
    time_call,
    time_turns,
)
from gateway.cli import main as gateway_main
from gateway.fleet.engine_watch import EngineWatch
from gateway.http1.connection import Connection
from gateway.kvcache.events.reader import EventReader
from gateway.kvcache.index.cache_index import CacheIndex
from gateway.proxy.http.connection import ClientConnection
from gateway.proxy.http.door import HttpClient
from gateway.proxy.http.reply import HttpReply
from gateway.proxy.http.server import Server
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.forward import Forwarder
from gateway.proxy.serving.placer import Placer
from gateway.proxy.serving.reception import Reception
from gateway.proxy.upstream.send import Upstream
from gateway.scheduling.scheduler import Scheduler
from gateway.tokens.encode import Encoder
from gateway.tokens.render import Renderer

STEPS: list[tuple[Any, str, str]] = [
    (web.RequestHandler, "data_received", "aiohttp: parse the request's head and body (in C), queue it"),
    (ClientConnection, "data_received", "around aiohttp: the limits of a head"),
    (reception, "parse", "parse the body"),
    (reception, "identify", "identify: model, headers"),
    (Renderer, "render", "render the chat template"),
    (Encoder, "read", "look up known token ids"),
    (Encoder, "finish", "encode new text, cache its ids"),
    (reception, "tokenized", "block keys"),
    (CacheIndex, "match", "match"),
    (Scheduler, "schedule", "schedule: filter, score, pick"),
    (Placer, "place", "book, and record the decision"),
    (Connection, "send", "send the leg to the engine"),
    (Connection, "data_received", "read the engine's answer"),
    (Attempt, "answered", "learn, release what was booked"),
    (front, "settle", "settle, count, log"),
    (HttpReply, "send", "write to the client"),
]
HANDLED = "route, direct: between the other steps"
"""The step that each request has once."""

COROUTINES: list[tuple[Any, str, str]] = [
    (ClientConnection, "start", "the connection's task, in the place of aiohttp's"),
    (Server, "handle", HANDLED),
    (Reception, "read", "receive, admit"),
    (Forwarder, "forward", "the leg, until its answer is committed"),
    (director, "relay", "relay: the answer's head, usage, parts"),
    (Upstream, "send", "take a connection, write the leg's head"),
    (EventReader, "_on_message", "KV events"),
    (EngineWatch, "_probe_once", "scrapes"),
]

LOOP = "event loop and system"
OTHERS = "other threads: log, long prompts, sockets of KV events"


@dataclass(frozen=True)
class Told:
    """``steps``: of each, how often it ended, and its seconds, clocks left out. ``seconds``: of the process, with the
    clocks. ``clocks``: of each kind, how many there were, and the seconds of one (own, around it)."""

    seconds: float
    steps: dict[str, tuple[int, float]]
    clocks: dict[str, tuple[int, float, float]]


class Watch:
    """Begins and ends what is measured, and adds it up."""

    def __init__(self, clock: Clock, out: Path) -> None:
        self._clock = clock
        self._out = out
        self._before: tuple[float, float, Step, dict[str, Step]] | None = None
        self._process = self._thread = 0.0
        self._root = Step(CALL)
        self._steps = {name: Step(step.kind) for name, step in clock.steps.items()}

    def toggle(self) -> None:
        clock = self._clock
        if self._before is None:
            steps = {name: step.copy() for name, step in clock.steps.items()}
            self._before = time.process_time(), time.thread_time(), clock.root.copy(), steps
            return
        process, thread, root, steps = self._before
        self._before = None
        self._process += time.process_time() - process
        self._thread += time.thread_time() - thread
        _add(self._root, clock.root.since(root))
        for name, step in clock.steps.items():
            _add(self._steps[name], step.since(steps[name]))
        part = self._out.with_suffix(".part")
        part.write_text(json.dumps(asdict(told(self._steps, self._root, self._process, self._thread))))
        part.rename(self._out)


def _add(total: Step, more: Step) -> None:
    total.spent += more.spent
    total.entries += more.entries
    total.ended += more.ended
    total.inside = [one + other for one, other in zip(total.inside, more.inside, strict=True)]


def told(steps: dict[str, Step], root: Step, process: float, thread: float) -> Told:
    """``process``, ``thread``: seconds of CPU of the process, and of the thread of the steps."""
    each: list[Cost] = costs(steps)
    empty = {form.format(kind) for form in (EMPTY, AROUND) for kind in KINDS}
    found = {name: (step.ended, corrected(step, each)) for name, step in steps.items() if name not in empty}
    around = Step(CALL, thread - sum(step.spent for step in steps.values()), inside=root.inside)
    found[LOOP] = 1, corrected(around, each, has_clock=False)
    found[OTHERS] = 1, process - thread
    counts = [sum(step.entries for step in steps.values() if step.kind == kind) for kind in range(len(KINDS))]
    clocks = {kind: (count, cost.own, cost.around) for kind, count, cost in zip(KINDS, counts, each, strict=True)}
    return Told(process, found, clocks)


def main() -> int:
    out, config = sys.argv[1:]
    clock = Clock()
    for owner, attribute, name in STEPS:
        time_call(owner, attribute, name, clock)
    for owner, attribute, name in COROUTINES:
        time_turns(owner, attribute, name, clock)
    probe, handle = Probe(clock), Server.handle

    async def probed(server: Server, client: HttpClient) -> None:
        await probe.run()
        await handle(server, client)

    setattr(Server, "handle", probed)  # noqa: B010 - not a method of the class, to mypy
    watch = Watch(clock, Path(out))
    signal.signal(signal.SIGUSR1, lambda number, frame: watch.toggle())
    return gateway_main(["serve", config])


if __name__ == "__main__":
    sys.exit(main())
