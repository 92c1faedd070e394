"""Reloads of all workers: each prepares by the new text, then all apply it; where one cannot, none does.

The parent reads the file, once, and workers get what it read. So a worker that starts later, in a dead one's place, has
the configuration in force and not what is in the file by then.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.config.document import text_of
from gateway.config.settings import Config
from gateway.errors import ConfigError
from gateway.framework import Clock
from gateway.notify import announced
from gateway.workers import words
from gateway.workers.asking import Answer, Asking, NoAnswer
from gateway.workers.crew import Crew
from gateway.workers.post import CONFIG, WANTED, digest
from gateway.workers.worker import Worker

log = logging.getLogger("kvgate.workers")

PREPARING = 300.0
"""Seconds for all to be prepared: a new model's tokenizer may have to be downloaded."""

PREPARE, APPLY, DISCARD = "/worker/prepare", "/worker/apply", "/worker/discard"
"""A worker's routes; ``worker_routes`` serves them."""


class Texts:
    """The configuration's texts in the private directory. ``file``: whence they come."""

    def __init__(self, file: Path, directory: Path) -> None:
        self._file = file
        self._in_force = directory / CONFIG
        self._wanted = directory / WANTED
        self.digest = ""
        """Of the text in force."""

    def begin(self, text: str) -> None:
        """This text is in force. Raises OSError."""
        self._in_force.write_text(text)
        self.digest = digest(text)

    def want(self) -> tuple[str, str]:
        """The file's text is wanted; returns it and its digest. Raises ConfigError."""
        text = text_of(self._file)
        try:
            self._wanted.write_text(text)
        except OSError as error:
            raise ConfigError(f"{self._wanted}: cannot be written: {error.strerror or error}") from error
        return text, digest(text)

    def adopt(self, wanted: str) -> None:
        """The wanted text, of this digest, is in force. Raises OSError."""
        os.replace(self._wanted, self._in_force)
        self.digest = wanted

    def want_what_is(self) -> None:
        """The text in force is what is wanted. Raises OSError."""
        self._wanted.write_text(self._in_force.read_text())


class Reloads:
    """``check``: makes a configuration of a text; raises ConfigError. ``adopted``: called with what came into force."""

    def __init__(
        self,
        crew: Crew,
        asking: Asking,
        texts: Texts,
        check: Callable[[str], Config],
        adopted: Callable[[Config], None],
        clock: Clock,
    ) -> None:
        self._crew = crew
        self._asking = asking
        self._texts = texts
        self._check = check
        self._adopted = adopted
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self._changing = asyncio.Lock()
        """Held while another configuration comes into force: a worker begins to serve before or after that. Not while
        workers prepare, which takes a minute where one hangs: a successor would wait, and maybe nobody serve."""

    async def reload(self) -> dict[str, Any]:
        """Read the file and serve by it; returns the changes, as each worker reports them. Raises ConfigError, with
        nothing changed."""
        async with self._one_at_a_time:
            answer = await announced(self._reload(), self._clock.monotonic(), _changes)
            log.info("reloaded: %d changes, in all workers", _changes(answer))
            return answer

    @asynccontextmanager
    async def in_force(self, worker: Worker) -> AsyncIterator[None]:
        """Within it this worker, which serves nobody yet, has the configuration in force, and that does not change.
        Raises ConfigError, OSError, NoAnswer."""
        while True:
            async with self._changing:
                if worker.digest == self._texts.digest:
                    yield
                    return
            async with self._one_at_a_time:
                await self._bring_up_to_date(worker)

    async def _bring_up_to_date(self, worker: Worker) -> None:
        """It has begun with another text: let it have the one in force. Raises ConfigError, OSError, NoAnswer."""
        self._texts.want_what_is()
        answer = await self._asking.ask(worker, "POST", PREPARE, seconds=PREPARING)
        if answer.status == 200:
            answer = await self._asking.ask(worker, "POST", APPLY)
        if answer.status != 200:
            raise ConfigError(answer.message)
        worker.digest = self._texts.digest

    async def _reload(self) -> dict[str, Any]:
        text, wanted = await asyncio.to_thread(self._texts.want)
        config = await asyncio.to_thread(self._check, text)
        workers = self._crew.alive
        if not workers:
            raise ConfigError("no worker serves")
        prepared = await self._all(workers, PREPARE)
        async with self._changing:
            # Those that were let serve meanwhile, by what is in force until now.
            late = [worker for worker in self._crew.alive if worker not in workers]
            prepared |= await self._all(late, PREPARE)
            refusals = {worker: answer for worker, answer in prepared.items() if answer.status != 200}
            if refusals or not prepared:
                await self._all(list(prepared.keys() - refusals.keys()), DISCARD)
                messages = {answer.message for answer in refusals.values()}
                raise ConfigError("; ".join(sorted(messages)) or "no worker answers")
            try:
                self._texts.adopt(wanted)  # a worker that dies from here on has a successor by it
            except OSError as error:
                await self._all(list(prepared), DISCARD)
                why = error.strerror or error
                raise ConfigError(f"{error.filename}: the workers' configuration cannot be changed: {why}") from error
            applied = await self._all(list(prepared), APPLY)
            for worker in (*workers, *late):
                # It has said that it can and did not: only another process is sure to have what the others have.
                answer = applied.get(worker)
                if (answer is None or answer.status != 200) and not worker.is_leaving:
                    log.error("worker %d did not apply the configuration: it starts anew", worker.number)
                    worker.kill()
            self._adopted(config)
        return next((answer.json for answer in applied.values() if answer.status == 200), {})

    async def _all(self, workers: Sequence[Worker], path: str) -> dict[Worker, Answer]:
        if not workers:
            return {}
        try:
            for worker in workers:
                worker.patience = words.LOADING
            return await self._asking.ask_all(workers, "POST", path, seconds=PREPARING)
        except NoAnswer:
            return {}
        finally:
            for worker in workers:
                worker.patience = words.HUNG


def _changes(answer: dict[str, Any]) -> int:
    return len(answer.get("changes", ()))
