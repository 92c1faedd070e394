"""Keeps what was used in a file, so that a restart does not begin at zero: written every few seconds and at the end.

Each write replaces the whole file at once. So a process that is killed loses what was used since the last write, at
most ``INTERVAL`` seconds before, and nothing else. Rates, and requests in flight, are not kept: they are over when the
process is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path

import msgspec

from gateway.core.files import replace_file
from gateway.core.log_limit import LogLimit, left_out
from gateway.core.tasks import TaskSet
from gateway.errors import ConfigError
from gateway.tenants.accounts import Account
from gateway.tenants.gate import Gate

log = logging.getLogger("kvgate.tenants")

INTERVAL = 5.0
"""Seconds between two writes."""

VERSION = 1
"""Of the file's form."""

KEPT_MONTHS = 13
"""Months after which an account that is not used any more is dropped: of a key that was revoked, for example."""


class _Kept(msgspec.Struct):
    version: int
    accounts: dict[str, Account]


class StateFile:
    """The accounts of ``gate``, in the file ``path``. One service for each file: the last that writes wins. Of
    workers that share a state one writes, and at its end each does."""

    def __init__(self, path: str, gate: Gate, *, interval: float = INTERVAL) -> None:
        self._path = Path(path)
        self._gate = gate
        self._interval = interval
        self._rows: dict[str, msgspec.Raw] = {}
        self._writing = asyncio.Lock()
        self._often = LogLimit(gate.clock)
        self._tasks = TaskSet()
        self._ours = True

    def load(self, *, again: bool = False) -> None:
        """Read what was kept; nothing where there is no file yet. Raises ConfigError where it cannot be read, or the
        file cannot be written later: budgets would be spent twice. Of workers the first one reads it. ``again``:
        another process has written it since."""
        state = self._gate.state
        state.hold_file()
        try:
            if again or not state.is_loaded:
                self._load()
                state.is_loaded = True
        finally:
            state.release_file()

    def _load(self) -> None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            data = b""
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be read: {error.strerror or error}") from error
        if data:
            try:
                kept = msgspec.json.decode(data, type=_Kept)
            except msgspec.MsgspecError as error:
                raise ConfigError(
                    f"{self._path} does not hold what tenants have used ({error}); move it away to begin at zero"
                ) from error
            if kept.version != VERSION:
                raise ConfigError(
                    f"{self._path} has the form {kept.version}, and this version of kvgate knows {VERSION} only"
                )
            oldest = _months_before(self._gate.calendar.month, KEPT_MONTHS)
            for name, account in kept.accounts.items():
                if account.day[:7] >= oldest:
                    self._gate.state.put(name, account)
                    self._rows[name] = msgspec.Raw(msgspec.json.encode(account))
        try:
            self._write(self._data())
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be written: {error.strerror or error}") from error

    def start(self) -> None:
        self._ours = True
        self._tasks.start(self._run(), name="save what tenants have used")

    async def pause(self) -> None:
        """Save, and leave the file to another process until ``start``: not even ``close`` writes it then."""
        await self._end()
        if self._gate.state.leads():  # of workers, one
            await self.save(even_if_same=True)  # who looked at it meanwhile may have written what it read
        self._ours = False

    async def close(self) -> None:
        """Save at last."""
        await self._end()
        await self.save()

    async def save(self, *, even_if_same: bool = False) -> None:
        """Write what has changed, in a thread. A failure is logged, and tried again the next time."""
        if not self._ours:
            return
        state = self._gate.state
        async with self._writing:
            await asyncio.to_thread(state.hold_file)
            changed: Collection[str] = ()
            try:
                if not (accounts := state.take_changed()) and not even_if_same:
                    return
                changed = accounts.keys()
                for name, account in accounts.items():
                    self._rows[name] = msgspec.Raw(msgspec.json.encode(account))
                for name in self._rows.keys() - state.names():
                    del self._rows[name]
                await asyncio.to_thread(self._write, self._data())
            except OSError as error:
                state.put_back(changed)
                if (count := self._often.admit("write")) is not None:
                    log.error("what tenants have used cannot be saved: %s%s", error, left_out(count))
            finally:
                state.release_file()

    async def _end(self) -> None:
        async with self._writing:  # a write that is cut off would go on in its thread, beside the last one
            await self._tasks.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            if self._gate.state.leads():
                await self.save()

    def _data(self) -> bytes:
        return msgspec.json.encode({"version": VERSION, "accounts": self._rows})

    def _write(self, data: bytes) -> None:
        replace_file(self._path, data)


def _months_before(month: str, count: int) -> str:
    year, number = divmod(int(month[:4]) * 12 + int(month[5:]) - 1 - count, 12)
    return f"{year:04}-{number + 1:02}"
