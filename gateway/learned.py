"""Keeps what was learned in a file, so that a restart does not begin at guesses: written every few seconds where it has
changed, and at the end.

What is in it: the costs that were fitted to the engines' times, and for each model how long its answers are and how
many tokens one event brings. It is no more than some hundred bytes a core. It helps, and is never needed: whatever is
wrong with the file, the log says so and the gateway starts as it would without one. So it is no place for what tenants
have used, where a lost figure costs money: that has a file of its own (``tenants/state_file.py``).

Not in it: the blocks that engines hold, and predictions of them. Engines replay their events, which is newer and whole;
and a prediction ends with its request, at the latest ``EVENTS_WITHIN`` seconds later. What is estimated of engines
without events, and remembered of single requests, is in a file beside it (``remembered.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from gateway.core.files import replace_file, state_of
from gateway.core.log_limit import LogLimit, left_out
from gateway.core.tasks import TaskSet
from gateway.fleet.fleet import Fleet
from gateway.fleet.load.kept import KeptPeers
from gateway.framework import Clock
from gateway.framework.fleet import Model
from gateway.remembered import RememberedFile

log = logging.getLogger("kvgate.state")

INTERVAL = 5.0
"""Seconds between two writes."""

VERSION = 1
"""Of the file's form, and of what its values mean: a cost model with another formula needs another number."""

BEGINNING = b'{"kvgate_state":'
"""Of each such file. One that begins otherwise is another program's, and is not overwritten."""

MAX_AGE = 3600.0
"""Seconds: what is older is not used. An engine may serve another mix of requests by then; and to learn anew takes some
dozens of requests."""

REFRESH = 600.0
"""Seconds after which a file that has not changed is written again: it is not older for that no request came."""

MAX_BYTES = 64 * 1024 * 1024
"""Of a file that is read: 100,000 cores. A larger one is none of ours."""

LONGEST_ANSWER = 10_000_000
"""Tokens, of an expected answer and of one event: no engine has such a context."""


class _KeptModel(msgspec.Struct, frozen=True):
    expected_output: float
    event_tokens: float

    def __post_init__(self) -> None:
        if not (0 <= self.expected_output <= LONGEST_ANSWER and 0 < self.event_tokens <= LONGEST_ANSWER):
            raise ValueError("an answer's length is out of all bounds")


class _Head(msgspec.Struct, frozen=True):
    """``written``: seconds since the epoch."""

    kvgate_state: int
    written: float


class _Body(msgspec.Struct, frozen=True):
    models: dict[str, _KeptModel]
    costs: tuple[KeptPeers, ...]


class LearnedFile:
    """What ``fleet`` and ``models`` have learned, in the file ``path``. ``remembered``: a file beside it. ``writes``:
    whether this process keeps both up to date; others only read them. If another process begins to write the first,
    this one ends doing so: the other has taken over."""

    def __init__(
        self,
        path: str,
        fleet: Fleet,
        models: Callable[[], Iterable[Model]],
        clock: Clock,
        *,
        remembered: RememberedFile | None = None,
        writes: bool = True,
        interval: float = INTERVAL,
    ) -> None:
        self._path = Path(path)
        self._fleet = fleet
        self._models = models
        self._clock = clock
        self._remembered = remembered
        self._interval = interval
        self._written: tuple[bytes, float] = b"", 0.0
        self._seen: object = None
        """The file's state after our last look or write; None: it was not looked at yet."""
        self._may_write = writes
        """False, too, if the path has a file of another kind, which is left as it is."""
        self._ours = writes
        self._saving = asyncio.Lock()
        self._often = LogLimit(clock)
        self._tasks = TaskSet()

    def load(self) -> None:
        """Go on from what was kept, if it is young and fits; before the fleet starts."""
        try:
            problem = self._load()
        except FileNotFoundError:
            problem = None
        except OSError as error:
            problem = f"it cannot be read: {error.strerror or error}"
        if problem is not None:
            log.warning("state: %s is not used, all is learned anew: %s", self._path, problem)
        self._seen = state_of(self._path)

    def recall_remembered(self) -> None:
        """After ``load``, once the engines are known."""
        if self._remembered is not None:
            self._remembered.recall(MAX_AGE)

    def start(self) -> None:
        self._ours = self._may_write
        self._tasks.start(self._run(), name="save what was learned")

    def found(self) -> None:
        """Another process has left the file to this one, and what is in it is not needed."""
        self._seen = state_of(self._path)

    async def pause(self) -> None:
        """Save, and leave the file to another process until ``start``: not even ``close`` writes it then."""
        await self.close()
        self._ours = False

    async def close(self) -> None:
        """Save at last, if ``load`` was called."""
        async with self._saving:  # a write that is cut off would go on in its thread, beside the last one
            await self._tasks.close()
        if self._seen is not None:
            await self.save(at_last=True)

    async def save(self, *, at_last: bool = False) -> None:
        """Write what has changed, in a thread. A failure is logged, and tried again the next time. ``at_last``: also
        if nothing has changed, since the file's age counts from now on."""
        async with self._saving:
            if self._ours:
                await self._save_learned(at_last)
            if self._ours and self._remembered is not None:
                await self._save_remembered(self._remembered, at_last)

    async def _save_remembered(self, remembered: RememberedFile, at_last: bool) -> None:
        if (data := await remembered.data(at_last=at_last)) is not None:
            try:
                await asyncio.to_thread(remembered.write, data)
            except OSError as error:
                self._report("remembered", error)

    async def _save_learned(self, at_last: bool) -> None:
        try:
            body = self._body()
        except ValueError:  # a value that would not be read again: the file stays as it is
            log.exception("state: what was learned is out of all bounds, and is not kept")
            return
        now = self._clock.wall()
        before, at = self._written
        if body == before and now - at < REFRESH and not at_last:
            return
        head = msgspec.json.encode(_Head(VERSION, now))
        try:
            self._ours = await asyncio.to_thread(self._replace, head[:-1] + b"," + body[1:])
        except OSError as error:
            self._report("learned", error)
            return
        if self._ours:
            self._written = body, now
        else:
            log.info("state: another process writes %s: this one ends doing so", self._path)

    def _report(self, what: str, error: OSError) -> None:
        if (count := self._often.admit(what)) is not None:
            name, why = error.filename or self._path, error.strerror or error
            log.error("state: %s cannot be written: %s%s", name, why, left_out(count))

    async def _run(self) -> None:
        while True:
            await self.save()  # at once, too: a path that cannot be written is told at the start
            await asyncio.sleep(self._interval)

    def _load(self) -> str | None:
        """What is wrong with the file. Raises OSError."""
        with open(self._path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        if not data.startswith(BEGINNING) and data:
            self._ours = self._may_write = False
            return "it is no such file, and is left as it is: give another path"
        if len(data) > MAX_BYTES:
            return f"it has more than {MAX_BYTES} bytes"
        try:
            head = msgspec.json.decode(data, type=_Head)
            if head.kvgate_state != VERSION:
                return f"it has the form {head.kvgate_state}, and this version of kvgate knows {VERSION} only"
            age = self._clock.wall() - head.written
            if not -MAX_AGE <= age <= MAX_AGE:  # of the future: a clock was wrong
                return f"it was written {age:.0f} s ago, and what is older than {MAX_AGE:.0f} s is not used"
            body = msgspec.json.decode(data, type=_Body)
        except msgspec.MsgspecError as error:
            return f"it is damaged ({error})"
        models = {model.name: model for model in self._models()}
        known = [name for name in body.models if name in models]
        for name in known:
            models[name].expected_output = body.models[name].expected_output
            models[name].event_tokens = body.models[name].event_tokens
        groups = self._fleet.recall_costs(body.costs)
        log.info(
            "state: goes on from %s, %.0f s old: answers of %d of %d models, costs of %d of %d kinds of engines",
            *(self._path, age, len(known), len(body.models), groups, len(body.costs)),
        )
        return None

    def _replace(self, data: bytes) -> bool:
        """Whether the file holds ``data`` now; it does not if another process has written it since we last looked.
        Blocking. Raises OSError."""
        now = state_of(self._path)
        if isinstance(now, tuple) and isinstance(self._seen, tuple) and now != self._seen:
            return False
        replace_file(self._path, data)
        self._seen = state_of(self._path)
        return True

    def _body(self) -> bytes:
        models = {model.name: _KeptModel(model.expected_output, model.event_tokens) for model in self._models()}
        return msgspec.json.encode(_Body(models, tuple(self._fleet.keep_costs())))
