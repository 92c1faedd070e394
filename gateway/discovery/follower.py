"""One source, followed: what it told last, and whether it can be read now."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from gateway.core.log_limit import LogLimit, left_out
from gateway.discovery.settings import DiscoverSettings
from gateway.discovery.source import MOST_ENDPOINTS, Source
from gateway.errors import ConfigError
from gateway.fleet.settings import EndpointSettings
from gateway.framework import Clock

log = logging.getLogger("kvgate.discovery")

AGAIN = 5.0
"""Seconds until a source that failed with an error of our own is followed again."""

SHOWN = 20
"""Wrong entries of one list that are logged: a list that is wrong as a whole would fill the log."""


class Follower:
    """``model``: whose endpoints it finds. ``endpoints``, ``wrong``: its last list, and what is wrong there.
    ``problem``: why it cannot be read now; empty: it can. ``changed_at``: seconds since the epoch, when it last told
    another list; None: it has told none. ``told``: set once it has."""

    def __init__(
        self,
        model: str,
        settings: DiscoverSettings,
        make: Callable[[DiscoverSettings], Source],
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        """``make``: makes the source; raises ConfigError if it cannot be followed now. ``changed``: called when there
        is another list."""
        self.model = model
        self.settings = settings
        self.endpoints: Sequence[EndpointSettings] = ()
        self.wrong: Sequence[str] = ()
        self.problem = "it has told nothing yet"
        self.changed_at: float | None = None
        self.told = asyncio.Event()
        self._make = make
        self._clock = clock
        self._changed = changed
        self._often = LogLimit(clock)
        self._lost = False

    @property
    def label(self) -> str:
        return self.settings.label

    def inherit(self, before: Follower) -> None:
        """Begin with what one with other settings found at the same place: it stays until this one has told its own."""
        self.endpoints, self.wrong = before.endpoints, before.wrong

    async def run(self) -> None:
        """Follow it for ever."""
        while True:
            try:
                await self._make(self.settings).follow(self._on_found, self._on_lost)
            except ConfigError as error:
                self._on_lost(error.message)
            except Exception as error:
                log.exception("model %s: %s: it is followed again in %g s", self.model, self.label, AGAIN)
                self._on_lost(repr(error))
            await asyncio.sleep(AGAIN)

    def _on_found(self, endpoints: Sequence[EndpointSettings], wrong: Sequence[str] = (), problem: str = "", /) -> None:
        if (count := len(endpoints) + len(wrong)) > MOST_ENDPOINTS:
            self._on_lost(f"it tells {count} endpoints, more than {MOST_ENDPOINTS}")
            return
        if not problem:
            if self._lost:
                log.info("model %s: %s can be read again", self.model, self.label)
            self.problem, self._lost = "", False
        known = set(self.wrong)
        for line in [line for line in wrong if line not in known][:SHOWN]:
            log.warning("model %s: %s: left out: %s", self.model, self.label, line)
        self.wrong = tuple(wrong)
        if self.changed_at is None or list(endpoints) != self.endpoints:
            before, now = _urls(self.endpoints), _urls(endpoints)
            added, removed = len(now - before), len(before - now)
            self.endpoints, self.changed_at = list(endpoints), self._clock.wall()
            log.info("model %s: %s: %d endpoints (+%d -%d)", self.model, self.label, len(now), added, removed)
            self._changed()
        self.told.set()
        if problem:
            self._on_lost(problem)

    def _on_lost(self, why: str) -> None:
        if why != self.problem and (count := self._often.admit(str(self._lost))) is not None:
            kept = (
                f"the {len(self.endpoints)} endpoints that it told last stay"
                if self.told.is_set()
                else "it told none yet"
            )
            log.warning("model %s: %s cannot be read: %s; %s%s", self.model, self.label, why, kept, left_out(count))
        self.problem, self._lost = why, True


def _urls(endpoints: Sequence[EndpointSettings]) -> set[str]:
    return {endpoint.url for endpoint in endpoints}
