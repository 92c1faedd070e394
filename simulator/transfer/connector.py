"""What a KV connector does for its engine, and the one that does nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from enum import Enum, auto
from typing import Any

from simulator.engine import Engine
from simulator.errors import EngineDead
from simulator.job import Job
from simulator.settings import EngineSettings
from simulator.transfer.parameters import Transfer

log = logging.getLogger("simulator")


class Load(Enum):
    """What became of the KV that a job waited for."""

    ARRIVED = auto()
    GARBLED = auto()  # it came, and it is not that of the job's prompt
    FAILED = auto()


class Connector:
    """One rank's side of a protocol. ``name`` is the rank's engine id; ``ranks`` are all, this one included.

    The order of calls: ``read`` a body, ``enter`` its jobs, ``fetch`` those that wait once they have their blocks
    (``loaded`` is called back), ``ended`` for each, ``answer`` for the first. Instead of all that ``reject``.
    ``loaded``, ``freed`` (blocks that an ended job kept) and ``died`` are set by who owns the engine.
    """

    def __init__(self, settings: EngineSettings, engine: Engine, name: str, rank: int) -> None:
        self.settings = settings
        self.engine = engine
        self.name = name
        self.rank = rank
        self.loaded: Callable[[Job, Load], None] = lambda job, load: None
        self.ranks: Sequence[Connector] = (self,)
        self.freed: Callable[[], None] = lambda: None
        self.died: Callable[[str], None] = lambda reason: None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self, host: str) -> None:
        """Listen where the protocol wants it. Raises OSError or zmq.ZMQError if a port is taken."""

    async def close(self) -> None:
        """Drop everything that is under way, and begin nothing more; whoever waits for it is left waiting."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def read(self, body: Mapping[str, Any]) -> Transfer | None:
        """The leg that a body asks for; None: a plain request. Raises ApiError, or EngineDead for what kills."""
        return None

    def enter(self, job: Job) -> None:
        """A job is about to be queued: say what it waits for and what it keeps."""

    def fetch(self, job: Job) -> None:
        """Get the KV of a job whose blocks are taken, and call ``loaded``."""

    def ended(self, job: Job) -> None:
        """A job is over, in whatever way."""

    def answer(self, job: Job) -> dict[str, Any] | None:
        """``kv_transfer_params`` of an ended job's unstreamed answer."""
        return None

    @property
    def recomputes(self) -> bool:
        """Whether a prompt whose KV does not come is computed here; else its request fails."""
        return self.settings.kv_load_failure_policy == "recompute"

    @property
    def bootstrap(self) -> str | None:
        """Where the other engine, or a gateway, asks for this one: host:port; None: the protocol has no such place."""
        return None

    async def deliver(self, job: Job) -> bool:
        """Hold an ended job's answer back until the protocol lets it go. False: it failed."""
        return True

    def reject(self, transfer: Transfer) -> None:
        """A leg was refused, or its client left, before it had an answer. Raises EngineDead for what kills."""

    def free(self, job: Job) -> None:
        """Give up the blocks that an ended job kept."""
        if self.engine.free(job):
            self.freed()

    def spawn(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        """Run something in the background until it ends or the engine does; a deadly request ends the engine."""
        if self._closed:
            # Requests that end with the engine still have something to tell. A socket now would outlive it.
            work.close()
            work = _nothing()
        task = asyncio.get_running_loop().create_task(self._guard(work, what), name=f"simulated-{what}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # One that is cancelled before its first step would leave the work unawaited, which Python warns of.
        task.add_done_callback(lambda _: work.close())
        return task

    async def _guard(self, work: Coroutine[Any, Any, None], what: str) -> None:
        try:
            await work
        except EngineDead as error:
            self.died(str(error))
        except Exception:
            log.exception("the simulated %s failed", what)


async def _nothing() -> None:
    return
