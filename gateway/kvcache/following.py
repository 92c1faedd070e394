"""One endpoint's KV events, from its inlet to the index, healed where they break.

Rules: subscribe first, replay second, then live, so that nothing falls between. Messages count from 0 in each engine
process. What is missing is asked for again; a number that goes back is another process, and so is a connection that
comes back and does not know our last message: forget, and begin anew.

History that has left the engine's buffer makes the endpoint *partial*: what is known is right, but not all. That ends
when the engine says that its cache is empty, and not by itself: a block that is hit goes to the end of vLLM's queue for
eviction and is not announced again, so that just those prefixes that are used most may stay unknown for ever, however
much has been computed since.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from enum import Enum

from xxhash import xxh3_64_intdigest

from gateway.framework import Clock, LogLimit, Observer, left_out
from gateway.kvcache.applying import Applying
from gateway.kvcache.index import CacheIndex
from gateway.kvcache.pace import TICK
from gateway.kvcache.replay import ReplayBroken, ReplayEndless, replay, sequence_of
from gateway.kvcache.settings import CacheSettings
from gateway.kvcache.sockets import Bell, Change, Inlet

log = logging.getLogger("kvgate.kvcache")

TRIES = 3
"""Replays in a row that may bring nothing new before what came has to do, and the endpoint is partial."""

RETRY = 30.0
"""Seconds until a history that could not be read is asked for again, once; each time twice as many."""

LONGEST_RETRY = 960.0
"""Seconds: while nobody answers, no live message is read, for as long as a replay may take."""


class Read(Enum):
    """How much of an engine's history could be read."""

    WHOLE = "whole"
    PARTLY = "partly"
    FAILED = "failed"


class Following:
    """Follows one endpoint's events into ``index``, until something fails.

    ``replay``: address of the engine's ROUTER socket; without it nothing from before the subscription is ever known.
    ``rank``: as the engine numbers its ranks; None: not known. Who hears another rank's events is partial from then on.
    ``tell`` is told the state (``connecting``, ``live``, ``partial``), ``synced`` set while the history has been read,
    as far as there is one. ``last``: number of the last message that was applied, -1: none. ``heard_at``:
    Clock.monotonic() of the last live one, None: none came. ``asleep``: the engine has reset its GPU's cache, after all
    that it has said so far.
    """

    def __init__(
        self,
        slot: int,
        endpoint_name: str,
        replay: str | None,
        rank: int | None,
        index: CacheIndex,
        observer: Observer,
        clock: Clock,
        settings: CacheSettings,
        tell: Callable[[str], None],
        synced: asyncio.Event,
    ) -> None:
        self.last = -1
        self.heard_at: float | None = None
        self.asleep = False
        self._slot = slot
        self._name = endpoint_name
        self._replay = replay
        self._index = index
        self._observer = observer
        self._clock = clock
        self._settings = settings
        self._tell = tell
        self._synced = synced
        self._applying = Applying(slot, endpoint_name, rank, index, observer)
        self._up = False
        self._admitted = False  # the index was told that something is not known
        # Of the engine process that is followed: the digest of its last message, how many processes (or beginnings)
        # there were before, the last message that came over the subscription, and whether some of its history is not
        # known; whether only its next message tells if it is the same process still.
        self._digest = 0
        self._process = 0
        self._heard = -1
        self._partial = False
        self._in_doubt = False
        self._failures = 0
        self._retry_at: float | None = None
        self._bell: Bell | None = None
        self._often = LogLimit(clock)

    async def follow(self, inlet: Inlet) -> None:
        """Never returns. Raises what fails in us."""
        self._bell = inlet.bell
        while True:
            if self._retry_at is not None and self._patience() == 0:
                await self._read_history(anew=True)
                self._tell_synced()
            match inlet.take():
                case list(frames):  # first, as it is nearly always
                    await self._hear(frames)
                case None if self.asleep:
                    # What it said before may have come, and not been looked at yet.
                    if not await inlet.bell.wait(TICK):
                        self.asleep = False
                        await self._applying.reset()
                case None:
                    await inlet.bell.wait(self._patience())
                case Change.CONNECTED:
                    self._up = True
                    await self._connected()
                case Change.DISCONNECTED:
                    self._up = False
                    self._tell("connecting")
                case Change.PERHAPS if self._replay is not None:
                    await self._read_history(anew=self.last < 0)
                    self._tell_synced()
                case Change.PERHAPS:
                    self._admit()

    def fell_asleep(self) -> None:
        """What was heard so far is applied first."""
        self.asleep = True
        if self._bell is not None:
            self._bell.ring()

    def end(self) -> None:
        """Apply nothing more: somebody else follows, and has told the index so."""
        self._applying.over = True

    def _patience(self) -> float | None:
        """Seconds until history is to be asked for again; None: it is known as far as it can be."""
        return None if self._retry_at is None else max(0.0, self._retry_at - self._clock.monotonic())

    async def _connected(self) -> None:
        """The subscription stands, for the first time or again: find out what was missed, and from whom."""
        self._heard = -1
        if self._replay is not None:
            await self._read_history(anew=self.last < 0)
        elif self.last < 0:
            # What comes first tells: 0 is the beginning of a process that has said nothing yet.
            self._partial = True
        else:
            self._in_doubt = True
            return
        self._tell_synced()

    async def _hear(self, frames: list[bytes]) -> None:
        """A live message."""
        sequence = sequence_of(frames)
        if sequence is None:
            self._observer.kv_events(self._name, "malformed-batch", 1)
            return
        payload = frames[-1]
        self.heard_at = self._clock.monotonic()
        heard, self._heard = self._heard, sequence
        if sequence == heard and xxh3_64_intdigest(payload) == self._digest:
            return
        if sequence <= heard or (self._replay is None and 0 <= sequence <= self.last):
            await self._forget()
            if self._replay is None:
                self._partial = sequence > 0
            elif await self._read_history(anew=True) is not Read.FAILED and sequence != self.last + 1:
                sequence = -1  # it was told, or its process is no more
            self._tell_synced()
        if sequence <= self.last:
            return  # the replay has told it already
        if sequence > self.last + 1:
            process = self._process
            if not await self._heal(sequence) or process != self._process:
                return
        elif self._replay is None and (self.last < 0 or self._in_doubt):
            self._partial = self._partial and self.last >= 0
            self._tell_synced()
        if sequence > self.last:
            partial = self._partial
            if await self._take(sequence, payload):
                self.asleep = False  # that was what it had to say of it
            if partial != self._partial:
                self._tell_synced()

    async def _heal(self, sequence: int) -> bool:
        """Messages before ``sequence`` are missing: ask for them. False if nothing can be made of ``sequence`` now."""
        if self._replay is None:
            if self.last >= 0:  # else: of what came before us nothing was ever to be known
                self._observer.kv_gap(self._name, "lost")
                self._partial, self._admitted = True, False
                self._tell_synced()
            return True
        # Where nobody answers, each question costs more messages.
        read = await self._read_history(anew=False) if self._retry_at is None else Read.FAILED
        whole = read is Read.WHOLE and self.last >= sequence - 1
        self._observer.kv_gap(self._name, "replayed" if whole else "lost")
        if read is Read.WHOLE and not whole:
            self._partial = True
        self._tell_synced()
        return whole or read is Read.FAILED or self.last >= sequence

    async def _read_history(self, anew: bool) -> Read:
        """Replay what is not known of the engine's history.

        ``anew``: all of it, and what is known goes as soon as there is something better. Else from our last message on:
        an engine that does not have just that is another process, and is read anew. Until the end of all that the past
        is not the present, and the endpoint is estimated.
        """
        assert self._replay is not None
        self._retry_at = None
        whole, fruitless = True, 0
        try:
            while fruitless < (1 if self._failures else TRIES):
                anew = anew or self.last < 0
                before, start = self.last, 0 if anew else self.last
                ours = anew
                try:
                    async with aclosing(replay(self._replay, start, self._settings.replay_timeout)) as history:
                        async for sequence, payload in history:
                            if not ours and sequence == start:
                                if xxh3_64_intdigest(payload) != self._digest:
                                    break
                                ours = True
                                continue
                            ours = True
                            if anew or sequence > self.last + 1:
                                # Where a part is lost, removals may be in it: what the buffer still has is all we know.
                                await self._forget()
                                self._index.reading(self._slot, True)
                                self._partial = sequence > 0
                                whole = not self._partial
                                anew, before = False, -1
                            await self._take(sequence, payload)
                    if not ours:
                        anew = True
                        continue
                    if anew:  # a process that has said nothing yet
                        await self._forget()
                        self._partial = False
                    self._failures = 0
                    return Read.WHOLE if whole or not self._partial else Read.PARTLY
                except ReplayBroken as error:
                    if (count := self._often.admit("broken")) is not None:
                        log.info("%s: its history, from %s: %s%s", self._name, self._replay, error, left_out(count))
                    if isinstance(error, ReplayEndless):
                        break
                    fruitless = fruitless + 1 if self.last == before else 0
        finally:
            if not self._applying.over:
                self._index.reading(self._slot, False)
        if (count := self._often.admit("unread")) is not None:
            text = "%s: its engine's event history cannot be read at %s%s"
            log.warning(text, self._name, self._replay, left_out(count))
        self._partial = True
        self._retry_at = self._clock.monotonic() + min(RETRY * 2 ** min(self._failures, 20), LONGEST_RETRY)
        self._failures += 1
        return Read.FAILED

    async def _forget(self) -> None:
        self._admitted = False
        self._process += 1
        if self.last >= 0:  # else nothing was told yet: all that is known is what was sent there while we connected
            self.last = -1
            await self._applying.forget()
        else:
            await self._applying.sweep()  # what was known of a process before

    async def _take(self, sequence: int, payload: bytes) -> bool:
        """Apply one message; whether it told that the GPU's cache was emptied."""
        cleared = await self._applying.take(payload)
        self.last, self._digest = sequence, xxh3_64_intdigest(payload)
        if self._applying.others:
            self._partial = True  # where its own events are nobody knows
        elif cleared and not self._applying.below:
            self._partial = False  # whatever was not known is gone
        return cleared

    def _tell_synced(self) -> None:
        self._in_doubt = False
        if self._up:
            if not self._partial:
                self._index.believe(self._slot)
                self._admitted = False
            else:
                self._admit()
            self._tell("partial" if self._partial else "live")
        self._synced.set()

    def _admit(self) -> None:
        """Tell the index, once, that the engine may hold what its messages have not told."""
        if not self._admitted:
            self._admitted = True
            self._index.unknown_past(self._slot)
