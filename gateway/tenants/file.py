"""Tenants and keys in a file, which is read again when it changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gateway.core.files import state_of
from gateway.errors import ConfigError
from gateway.tenants.settings import TenantsFileSettings

log = logging.getLogger("kvgate.tenants")

LOOK = 1.0
"""Seconds between two looks at the file: so long a revoked key may go on. A look is one ``stat`` in a thread."""


class FileSource:
    """The last usable content of a file. A file that cannot be used, half written for example, changes nothing: it is
    reported with its line when the next look finds it unchanged.

    ``read``: reads ``file``; raises ConfigError. Called in a thread.
    """

    kind = "file"
    complete = True

    def __init__(self, file: str, read: Callable[[], TenantsFileSettings]) -> None:
        """Reads the file. Raises ConfigError."""
        self._file = file
        self._read = read
        self._state = state_of(file)
        self._broken: object = None
        """The state in which it could not be used; None: it can."""
        self._why = ""
        self._one_at_a_time = asyncio.Lock()
        self.content = read()
        self.problem = ""
        """Why the file cannot be used as it is now; empty: it can."""

    async def follow(self, changed: Callable[[], None]) -> None:
        """Look at the file for ever. ``changed``: called when there is new content."""
        while True:
            await self.look(changed)
            await asyncio.sleep(LOOK)

    async def look(self, changed: Callable[[], None]) -> None:
        """Read the file again if it has changed."""
        async with self._one_at_a_time:
            state = await asyncio.to_thread(state_of, self._file)
            if state == self._state:
                return
            if state == self._broken:
                self._report()
                return
            try:
                content = await asyncio.to_thread(self._read)
            except ConfigError as error:
                self._broken, self._why = state, error.message
                return
            self.content, self._state, self._broken, self.problem = content, state, None, ""
            log.info("read again: %s: %d tenants, %d keys", self._file, len(content.tenants), len(content.keys))
            changed()

    def _report(self) -> None:
        if self.problem != self._why:
            self.problem = self._why
            log.error("%s; until it is corrected, the tenants and keys of before stay in force", self.problem)
