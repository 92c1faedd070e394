"""A gateway whose steps are timed: ``python -m benchmarks.data_path.steps_inside OUT CONFIG``.

SIGUSR1 begins; the next one writes to OUT, as JSON: seconds of CPU in all, and for each step how often it ran and its
own seconds, those of the steps inside it left out. A clock reading is a system call: each step costs 1 us more.
"""

from __future__ import annotations

import functools
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import gateway.proxy.serving.director as director
import gateway.proxy.serving.reception as reception
from gateway.cli import main as gateway_main
from gateway.fleet.engine_watch import EngineWatch
from gateway.http1.connection import Connection
from gateway.kvcache.events.reader import EventReader
from gateway.kvcache.index.cache_index import CacheIndex
from gateway.proxy.http.connection import ClientConnection
from gateway.proxy.http.reply import HttpReply
from gateway.proxy.http.server import Server
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.placer import Placer
from gateway.proxy.upstream.send import Upstream
from gateway.scheduling.scheduler import Scheduler
from gateway.tokens.encode import Encoder
from gateway.tokens.render import Renderer

STEPS: list[tuple[Any, str, str]] = [
    (ClientConnection, "data_received", "read the request's head and body (aiohttp)"),
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
    (director, "settle", "settle, count, log"),
    (HttpReply, "send", "write to the client"),
]
COROUTINES: list[tuple[Any, str, str]] = [
    (Server, "handle", "the handler, between its steps"),
    (Upstream, "send", "take a connection, write the leg's head"),
    (EventReader, "_on_message", "KV events"),
    (EngineWatch, "_probe_once", "scrapes"),
]


class Clock:
    """Own seconds of each step. Steps nest as calls do: there is one thread that runs them."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self.times: dict[str, int] = {}
        self.began = 0.0
        self._inner = [0.0]

    def enter(self) -> float:
        self._inner.append(0.0)
        return time.thread_time()

    def leave(self, name: str, began: float, *, ended: bool = True) -> None:
        took = time.thread_time() - began
        inner = self._inner.pop()
        self._inner[-1] += took
        self.spent[name] = self.spent.get(name, 0.0) + took - inner
        self.times[name] = self.times.get(name, 0) + ended

    def toggle(self, out: Path) -> None:
        if not self.began:
            self.spent.clear()
            self.times.clear()
            self.began = time.process_time()
            return
        steps = {name: [self.times[name], spent] for name, spent in self.spent.items()}
        told = {"seconds": time.process_time() - self.began, "steps": steps}
        out.with_suffix(".part").write_text(json.dumps(told))
        out.with_suffix(".part").rename(out)
        self.began = 0.0


class Driven:
    """A coroutine, each of whose turns is timed."""

    def __init__(self, inner: Any, name: str, clock: Clock) -> None:
        self._inner = inner
        self._name = name
        self._clock = clock

    def __await__(self) -> Generator[Any, Any, Any]:
        def turns() -> Generator[Any, Any, Any]:
            turn: Callable[[], Any] = functools.partial(self._inner.send, None)
            while True:
                began = self._clock.enter()
                ended = True
                try:
                    waited_for = turn()
                    ended = False
                except StopIteration as done:
                    return done.value
                finally:
                    self._clock.leave(self._name, began, ended=ended)
                try:
                    turn = functools.partial(self._inner.send, (yield waited_for))
                except BaseException as error:  # whatever it is, it is for the coroutine
                    turn = functools.partial(self._inner.throw, error)

        return turns()


def time_call(owner: Any, attribute: str, name: str, clock: Clock) -> None:
    real = getattr(owner, attribute)

    @functools.wraps(real)
    def timed(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():  # long prompts: not a step of the loop's
            return real(*args, **kwargs)
        began = clock.enter()
        try:
            return real(*args, **kwargs)
        finally:
            clock.leave(name, began)

    setattr(owner, attribute, timed)


def time_turns(owner: Any, attribute: str, name: str, clock: Clock) -> None:
    real = getattr(owner, attribute)

    @functools.wraps(real)
    async def timed(*args: Any, **kwargs: Any) -> Any:
        return await Driven(real(*args, **kwargs), name, clock)

    setattr(owner, attribute, timed)


def main() -> int:
    out, config = sys.argv[1:]
    clock = Clock()
    for owner, attribute, name in STEPS:
        time_call(owner, attribute, name, clock)
    for owner, attribute, name in COROUTINES:
        time_turns(owner, attribute, name, clock)
    signal.signal(signal.SIGUSR1, lambda number, frame: clock.toggle(Path(out)))
    return gateway_main(["serve", config])


if __name__ == "__main__":
    sys.exit(main())
