"""The files of one process in which it keeps what is to outlive it: read as it starts, written until it ends or leaves
them to another process."""

from __future__ import annotations

from gateway.config.settings import Config
from gateway.learned import LearnedFile
from gateway.tenants.state_file import StateFile
from gateway.wiring import blaming


class Kept:
    """``used``: of what tenants have used; ``learned``: of engines and answers. None: ``config`` names no such file."""

    def __init__(self, config: Config, used: StateFile | None, learned: LearnedFile | None) -> None:
        self._config = config
        self._used = used
        self._learned = learned

    def read(self, *, again: bool = False) -> None:
        """Before the fleet starts. ``again``: another process has written them since. Raises ConfigError."""
        if self._used is not None:
            with blaming(self._config, *(("state",) if self._config.tenants.state is None else ("tenants", "state"))):
                self._used.load(again=again)
        if self._learned is not None:
            self._learned.load() if not again else self._learned.found()

    def recall_remembered(self) -> None:
        """After ``read``, once the engines are known."""
        if self._learned is not None:
            self._learned.recall_remembered()

    def start(self) -> None:
        """Keep all from now on."""
        if self._used is not None:
            self._used.start()
        if self._learned is not None:
            self._learned.start()

    async def pause(self) -> None:
        """Keep it once more, and then leave the files to another process, until ``start``."""
        if self._used is not None:
            await self._used.pause()
        if self._learned is not None:
            await self._learned.pause()

    async def close(self) -> None:
        """Keep it at last, unless the files are left to another process."""
        if self._used is not None:
            await self._used.close()
        if self._learned is not None:
            await self._learned.close()
