"""Reads the KV events of one endpoint into the index: in order, without gaps, and again where that breaks.

Rules: subscribe first, replay second, then live messages, so that nothing falls between. Messages are numbered from 0
in each engine process. A gap is asked for again. A number that goes back is another process, and so is a connection
that comes back and does not know our last message: clear what is known, and begin anew.

History that has left the engine's buffer makes the endpoint *partial*: what is known is right, but not all. That ends
when the engine reports that its cache is empty, and not by itself: a block that is hit goes to the end of vLLM's queue
for eviction and is not announced again, so that the prefixes that are used most may stay unknown for ever, however much
has been computed since.

Messages are applied in slices: a busy thread stalls every stream that the gateway relays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from enum import Enum

from xxhash import xxh3_64_intdigest

from gateway.core.log_limit import LogLimit, left_out
from gateway.kvcache.events.decode import decode, slices
from gateway.kvcache.events.poller import TICK
from gateway.kvcache.events.replay import ReplayBroken, ReplayEndless, replay, sequence_of
from gateway.kvcache.events.sockets import Change, Inbox
from gateway.kvcache.events.target import EventTarget
from gateway.kvcache.events.turns import Turns, sweep
from gateway.kvcache.index.block_events import AllBlocksCleared
from gateway.kvcache.index.cache_index import Applied
from gateway.kvcache.index.layers import Layer, tier_of

log = logging.getLogger("kvgate.kvcache")

MESSAGE_COST = 8
"""What a message costs beside its blocks, in blocks."""

TRIES = 3
"""Replays in a row that may bring nothing new before the endpoint is partial."""

RETRY = 30.0
"""Seconds until a history that could not be read is asked for again, once; each time twice as many."""

LONGEST_RETRY = 960.0
"""Seconds: while nothing answers, no live message is read, for as long as a replay may take."""


class Read(Enum):
    """How much of an engine's history could be read."""

    WHOLE = "whole"
    PARTLY = "partly"
    FAILED = "failed"


class EventReader:
    """Reads the events of ``target`` until something fails.

    ``report_state``: called with ``connecting``, ``live`` or ``partial``. ``synced``: set once the history has been
    read, as far as there is one. ``last``: number of the last message that was applied; -1: none. ``heard_at``:
    Clock.monotonic() of the last live message; None: none came. ``asleep``: the engine has reset its GPU's cache, after
    all that it has reported so far.
    """

    def __init__(self, target: EventTarget, report_state: Callable[[str], None], synced: asyncio.Event) -> None:
        self.last = -1
        self.heard_at: float | None = None
        self.asleep = False
        self._target = target
        self._report_state = report_state
        self._synced = synced
        self._inbox: Inbox | None = None
        self._often = LogLimit(target.clock)
        self._connected = False
        # About the engine process: the digest of its last message, the number of processes (or restarts of the
        # sequence) before it, the number of the last live message, whether its events are partial, and whether the
        # index knows that; whether only its next message will show if it is still the same process.
        self._digest = 0
        self._process = 0
        self._heard = -1
        self._partial = False
        self._partial_told = False
        self._in_doubt = False
        # Messages of another rank came, and were left out; the engine has reported a tier below the GPU.
        self._other_rank_came = False
        self._tiered = False
        # Replays that have failed in a row, and when the next one is due.
        self._failures = 0
        self._retry_at: float | None = None
        self._turns = Turns()

    async def read(self, inbox: Inbox) -> None:
        """Never returns. Raises failures of ours."""
        self._inbox, waited = inbox, False
        inbox.paused = False
        while True:
            retry = None if self._retry_at is None else max(0.0, self._retry_at - self._target.clock.monotonic())
            if retry == 0.0:  # the history is to be asked for again
                await self._read_history(anew=True)
                self._report()
                continue
            item = inbox.receive()
            if item is None:
                self._target.index.report_counts(self._target.slot)
            match item:
                case list(frames):  # first, as the usual case
                    waited = False
                    await self._on_message(frames)
                case None if self.asleep and waited:
                    self.asleep = waited = False
                    await self._reset()
                case None if self.asleep:
                    # What it sent before may have come, and not been looked at yet.
                    waited = not await inbox.signal.wait(2 * TICK)
                case None:
                    await inbox.signal.wait(retry)
                    self._turns.work = 0
                case Change.CONNECTED:
                    self._connected = True
                    await self._on_connected()
                case Change.DISCONNECTED:
                    self._connected = False
                    self._report_state("connecting")
                case Change.UNCERTAIN if self._target.replay is not None:
                    await self._read_history(anew=self.last < 0)
                    self._report()
                case Change.UNCERTAIN:
                    self._report_partial()

    def fell_asleep(self) -> None:
        """The engine has reset its GPU cache: clear it, after what has come so far is applied."""
        self.asleep = True
        if self._inbox is not None:
            self._inbox.signal.set()

    async def _on_connected(self) -> None:
        """The subscription stands, for the first time or again: find out what was missed, and whether it is the same
        process."""
        self._heard = -1
        if self._target.replay is not None:
            await self._read_history(anew=self.last < 0)
        elif self.last < 0:
            # The first message decides: 0 is the first of a process.
            self._partial = True
        else:
            self._in_doubt = True
            return
        self._report()

    async def _on_message(self, frames: list[bytes]) -> None:
        """A live message."""
        sequence = sequence_of(frames)
        if sequence is None:
            self._target.observer.kv_events(self._target.name, "malformed-batch", 1)
            return
        payload = frames[-1]
        self.heard_at = self._target.clock.monotonic()
        heard, self._heard = self._heard, sequence
        if sequence == heard and xxh3_64_intdigest(payload) == self._digest:
            return
        if sequence <= heard or (self._target.replay is None and 0 <= sequence <= self.last):
            await self._forget()
            if self._target.replay is None:
                self._partial = sequence > 0
            elif await self._read_history(anew=True) is not Read.FAILED and sequence != self.last + 1:
                sequence = -1  # the replay had it, or its process is gone
            self._report()
        if sequence <= self.last:
            return  # the replay had it
        if sequence > self.last + 1:
            process = self._process
            if not await self._fill_gap(sequence) or process != self._process:
                return
        elif self._target.replay is None and (self.last < 0 or self._in_doubt):
            self._partial = self._partial and self.last >= 0
            self._report()
        if sequence > self.last:
            partial = self._partial
            if await self._apply(sequence, payload):
                self.asleep = False  # this was the reset that it reports after waking up
            if partial != self._partial:
                self._report()

    async def _fill_gap(self, sequence: int) -> bool:
        """Messages before ``sequence`` are missing: ask for them. False if ``sequence`` cannot be applied now."""
        if self._target.replay is None:
            if self.last >= 0:  # else what came before us is unknown anyway
                self._target.observer.kv_gap(self._target.name, "lost")
                self._partial, self._partial_told = True, False
                self._report()
            return True
        # While nothing answers, each question costs more messages.
        read = await self._read_history(anew=False) if self._retry_at is None else Read.FAILED
        whole = read is Read.WHOLE and self.last >= sequence - 1
        self._target.observer.kv_gap(self._target.name, "replayed" if whole else "lost")
        if read is Read.WHOLE and not whole:
            self._partial = True
        self._report()
        return whole or read is Read.FAILED or self.last >= sequence

    async def _read_history(self, anew: bool) -> Read:
        """Replay what is not known of the engine's history.

        ``anew``: all of it, and what is known is cleared as soon as there is something better. Else from our last
        message on: an engine that does not have just that one is another process, and is read anew. Until its end the
        history describes the past, and the endpoint is approximated.
        """
        assert self._inbox is not None
        self._retry_at = None
        self._inbox.paused = True
        read = await self._replayed(anew)
        self._inbox.paused = False
        self._target.index.set_replaying(self._target.slot, False)
        if read is Read.FAILED:
            if (count := self._often.admit("unread")) is not None:
                text = "%s: its engine's event history cannot be read at %s%s"
                log.warning(text, self._target.name, self._target.replay, left_out(count))
            self._partial = True
            self._retry_at = self._target.clock.monotonic() + min(RETRY * 2 ** min(self._failures, 20), LONGEST_RETRY)
            self._failures += 1
        else:
            self._failures = 0
        return read

    async def _replayed(self, anew: bool) -> Read:
        """Ask for the history, and again where an answer breaks off, as long as that brings something new."""
        assert self._target.replay is not None
        whole, fruitless = True, 0
        while fruitless < (1 if self._failures else TRIES):
            anew = anew or self.last < 0
            before, start = self.last, 0 if anew else self.last
            ours = anew
            try:
                async with aclosing(replay(self._target.replay, start, self._target.timeout)) as history:
                    async for sequence, payload in history:
                        if not ours and sequence == start:
                            if xxh3_64_intdigest(payload) != self._digest:
                                break
                            ours = True
                            continue
                        ours = True
                        if anew or sequence > self.last + 1:
                            # Removals may be in the part that is lost: only what the buffer still has is known.
                            await self._forget()
                            self._target.index.set_replaying(self._target.slot, True)
                            self._partial = sequence > 0
                            whole = not self._partial
                            anew, before = False, -1
                        await self._apply(sequence, payload)
                        self._target.index.report_counts(self._target.slot)
                if not ours:
                    anew = True
                    continue
                if anew:  # a process that has sent nothing yet
                    await self._forget()
                    self._partial = False
                return Read.WHOLE if whole or not self._partial else Read.PARTLY
            except ReplayBroken as error:
                if (count := self._often.admit("broken")) is not None:
                    text = "%s: its history, from %s: %s%s"
                    log.info(text, self._target.name, self._target.replay, error, left_out(count))
                if isinstance(error, ReplayEndless):
                    break
                fruitless = fruitless + 1 if self.last == before else 0
        return Read.FAILED

    async def _apply(self, sequence: int, payload: bytes) -> bool:
        """Apply one message; whether it reported that the GPU cache is empty."""
        target, batch = self._target, decode(payload)
        await self._turns.take(MESSAGE_COST)
        for reason, count in batch.refused.items():
            target.observer.kv_events(target.name, reason, count)
        cleared = False
        if target.rank is not None and batch.rank not in (None, target.rank):
            self._leave_out(batch.rank)
        else:
            for events, blocks in slices(batch.events):
                if isinstance(events[0], AllBlocksCleared):
                    await self._reset()
                    cleared = True
                    continue
                await self._turns.take(blocks)
                for event in () if self._tiered else events:
                    medium = event.medium  # type: ignore[union-attr]  # no reset is among them
                    self._tiered = self._tiered or (medium != "GPU" and tier_of(medium) is not Layer.GPU)
                if target.index.apply(target.slot, events) is Applied.REKEYED:
                    await self._await_restart()
        self.last, self._digest = sequence, xxh3_64_intdigest(payload)
        if self._other_rank_came:
            self._partial = True  # where its own events go is unknown
        elif cleared and not self._tiered:
            self._partial = False  # blocks that were not reported are gone
        return cleared

    async def _await_restart(self) -> None:
        """The index was rekeyed. The owner restarts all streams in a turn of its own, when none is on the stack. Until
        that cancels this one, it must apply nothing: the rest is for its successor, behind what came before."""
        loop = asyncio.get_running_loop()
        loop.call_soon(self._target.rekeyed)
        await loop.create_future()

    def _leave_out(self, rank: int | None) -> None:
        """Events of another rank would be taken for blocks that this one holds."""
        target = self._target
        target.observer.kv_events(target.name, "other-rank", 1)
        if not self._other_rank_came:
            self._other_rank_came = True
            text = "KV events of %s come from rank %s of its engine, not from %s"
            log.error(text, target.name, rank, target.rank)

    async def _reset(self) -> None:
        for _ in self._target.index.reset_gpu(self._target.slot):
            await self._turns.take(1)
        await sweep(self._target.index)

    async def _forget(self) -> None:
        """The engine is another process, or what is known of it cannot be continued."""
        self._partial_told = False
        self._process += 1
        if self.last >= 0:  # else nothing was reported yet: what is known is what was sent there while we connected
            self.last = -1
            self._target.index.clear(self._target.slot)
        await sweep(self._target.index)

    def _report(self) -> None:
        """The history is known as far as it can be, for now: report the state."""
        self._in_doubt = False
        if self._connected:
            if not self._partial:
                self._target.index.set_complete(self._target.slot)
                self._partial_told = False
            else:
                self._report_partial()
            self._report_state("partial" if self._partial else "live")
        self._synced.set()

    def _report_partial(self) -> None:
        """Tell the index, once, that the engine may hold blocks that it has not reported."""
        if not self._partial_told:
            self._partial_told = True
            self._target.index.set_partial(self._target.slot)
