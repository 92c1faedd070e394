"""The watches of all workers of a host, as one: the lead asks the engines, and tells the others what it finds.

Rules: a worker believes the lead; before it knows an engine, it believes whoever knows it. So one that starts, be it
the lead, begins with what the others know. What a worker's own requests notice (a refused connection, an answer that
broke off) it acts on at once and tells the lead, which then tells all. A worker that has an engine which the lead does
not have asks that engine itself until the lead reports it. When the lead ends, the next one goes on within a scrape
interval, from the same state.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.fleet.report import EngineFailed, EngineReport, decode_failed, decode_names, decode_report, encode
from gateway.sharing.siblings import Change, Siblings

REPORT = "engine-report"
FAILED = "engine-failed"
WANTED = "engines-wanted"
TOLD = "engines-told"
WAKE = "engine-wake"

PATIENCE = 1.0
"""Seconds that a start waits for what the others know of the engines: some milliseconds, or one of them hangs."""


class Watch(Protocol):
    """The watch over one engine, as its siblings in other workers see it."""

    @property
    def url(self) -> str:
        """Of its engine."""
        ...

    @property
    def knows(self) -> bool:
        """Whether it has found out anything about its engine."""
        ...

    def whole(self) -> EngineReport:
        """All that it knows."""
        ...

    def adopt(self, report: EngineReport) -> None:
        """Take over what another worker has found."""
        ...

    def set_alone(self) -> None:
        """The lead does not have this engine."""
        ...

    def hear_failure(self, what: str) -> None:
        """Another worker's request has noticed this: see ``EngineFailed``."""
        ...

    def lead_changed(self) -> None: ...


class Reports:
    """``asks``: whether this worker is the one that asks the engines. ``wake``: called where it leads, with the URL of
    a sleeping engine for which requests of another worker wait."""

    def __init__(self, siblings: Siblings) -> None:
        self._siblings = siblings
        self.wake: Callable[[str], None] = lambda url: None
        self._watches: dict[str, dict[Watch, None]] = {}  # while a configuration is replaced, a URL may have two
        self._open = False
        self._caught_up = asyncio.Event()
        siblings.hear(REPORT, self._hear_report)
        siblings.hear(FAILED, self._hear_failure)
        siblings.hear(WANTED, self._hear_wanted)
        siblings.hear(TOLD, self._hear_told)
        siblings.hear(WAKE, self._hear_wake)
        siblings.watch(self._look)

    @property
    def asks(self) -> bool:
        return self._open and self._siblings.is_lead

    # life

    async def start(self) -> None:
        """Learn what the others know of the engines that are watched, and have those be asked that nobody knows."""
        others = self._siblings.live - {self._siblings.number}
        if others:
            self._want(min(others), list(self._watches))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await self._caught_up.wait()
        self._open = True
        for watch in self._all():
            watch.lead_changed()

    def close(self) -> None:
        """Nothing is adopted any more."""
        self._open = False
        self._watches.clear()

    def add(self, watch: Watch) -> None:
        """It begins to watch."""
        self._watches.setdefault(watch.url, {})[watch] = None
        if self._open and not self._siblings.is_lead:
            self._want(self._siblings.lead, [watch.url])

    def remove(self, watch: Watch) -> None:
        watches = self._watches.get(watch.url, {})
        watches.pop(watch, None)
        if not watches:
            self._watches.pop(watch.url, None)

    # telling

    def tell(self, report: EngineReport) -> None:
        """If this worker leads: the others must know this."""
        if self.asks:
            self._siblings.tell(REPORT, encode(report))

    def tell_failure(self, url: str, what: str) -> None:
        """If this worker does not lead: the lead must know this. ``what``: see ``EngineFailed``."""
        if not self._siblings.is_lead:
            self._siblings.tell_one(self._siblings.lead, FAILED, encode(EngineFailed(url, what)))

    def tell_wake(self, url: str) -> None:
        """If this worker does not lead: the lead is to wake this engine."""
        if not self._siblings.is_lead:
            self._siblings.tell_one(self._siblings.lead, WAKE, encode([url]))

    def _want(self, number: int, urls: list[str]) -> None:
        self._siblings.tell_one(number, WANTED, encode(urls))

    # hearing

    def _hear_report(self, number: int, message: bytes) -> None:
        report = decode_report(message)
        for watch in self._of(report.url):
            if not watch.knows or (number == self._siblings.lead):
                watch.adopt(report)

    def _hear_failure(self, number: int, message: bytes) -> None:
        failed = decode_failed(message)
        if self.asks:
            for watch in self._of(failed.url):
                watch.hear_failure(failed.what)

    def _hear_wake(self, number: int, message: bytes) -> None:
        if self.asks:
            for url in decode_names(message):
                self.wake(url)

    def _hear_wanted(self, number: int, message: bytes) -> None:
        """Tell what we know of these engines, and then which of them we do not have."""
        urls = decode_names(message)
        for url in urls:
            for watch in self._of(url):
                if watch.knows:
                    self._siblings.tell_one(number, REPORT, encode(watch.whole()))
        self._siblings.tell_one(number, TOLD, encode([url for url in urls if url not in self._watches]))

    def _hear_told(self, number: int, message: bytes) -> None:
        if number == self._siblings.lead:
            for url in decode_names(message):
                for watch in self._of(url):
                    watch.set_alone()
        self._caught_up.set()

    def _look(self, change: Change) -> None:
        """Of who has come to lead we hear all: it may know more, or it has missed something, or we have."""
        if not self._open:
            return
        lead = self._siblings.lead
        if lead in change.joined or (change.lead and not self._siblings.is_lead):
            self._want(lead, list(self._watches))
        if change.lead:
            for watch in self._all():
                watch.lead_changed()

    def _all(self) -> Sequence[Watch]:
        return [watch for watches in self._watches.values() for watch in watches]

    def _of(self, url: str) -> Sequence[Watch]:
        return tuple(self._watches.get(url, ()))
