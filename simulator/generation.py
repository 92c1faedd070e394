"""One request's answer as it grows: text and tokens of each sequence, and what it used."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.driver import Stream
from simulator.errors import internal
from simulator.job import Finish, Job, Output
from simulator.prompts import Ask
from simulator.tokenizer import Words


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of one sequence. ``finish`` is set on its last one; ``stop``: the string that ended it."""

    index: int
    text: str
    token: int
    finish: str | None = None
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens of a request. ``cached``: of the prompt, found in a cache; of a decode leg, what the prefill engine found.
    ``created``: of it, computed here, in full blocks."""

    prompt: int
    output: int
    cached: int
    created: int


class Generation:
    """Iterate it for the pieces, in the order in which they were sampled; ``close`` it whatever happened.

    Raises ApiError 500 where a sequence ends with an error.
    """

    def __init__(
        self, stream: Stream, asks: Sequence[Ask], words: Words, on_abort: Callable[[], None] = lambda: None
    ) -> None:
        self.asks = asks
        self.jobs = stream.jobs
        self.texts = ["" for _ in asks]
        self.tokens: list[list[int]] = [[] for _ in asks]
        self.finishes: list[str | None] = [None for _ in asks]
        self.stops: list[str | None] = [None for _ in asks]
        self._stream = stream
        self._eos = words.eos
        self._spelling = dict(words.pieces)
        self._on_abort = on_abort
        self._places = {job: index for index, job in enumerate(stream.jobs)}

    async def __aiter__(self) -> AsyncIterator[Piece]:
        async for output in self._stream:
            failed = output.finish is Finish.ERROR
            if failed or (output.finish is not None and not await self._stream.deliver(output.job)):
                raise internal()
            index = self._places[output.job]
            if self.finishes[index] is None:
                yield self._piece(index, output)

    async def begin(self) -> None:
        """Wait until the engine says something, be it that a sequence failed: what announces an answer goes out now."""
        await self._stream.begin()

    async def complete(self) -> None:
        """Wait for all of it."""
        async for _ in self:
            pass

    @property
    def handover(self) -> dict[str, Any] | None:
        """``kv_transfer_params`` of the whole answer; None: it is no prefill leg that came to an end.

        Of several sequences of a prompt vLLM tells the last one's and keeps the blocks of all, of several prompts the
        first one's.
        """
        first = [job for job, ask in zip(self.jobs, self.asks, strict=True) if ask.ids is self.asks[0].ids]
        return self._stream.handover(first[-1])

    def close(self) -> None:
        """Abort what still runs."""
        if self._stream.abort():
            self._on_abort()

    def spent(self, index: int | None = None) -> Spent:
        """By one sequence, or by all: a prompt that several sequences share is counted once."""
        chosen = [job for place, job in enumerate(self.jobs) if index is None or place == index]
        prompts = [job for job in chosen if index is not None or self._first(job)]
        size = self.jobs[0].chain.block_size
        return Spent(
            prompt=sum(job.prompt_tokens for job in prompts),
            output=sum(len(self.tokens[self._places[job]]) for job in chosen),
            cached=sum(self._cached(job) for job in prompts),
            created=sum(max(0, job.prompt_tokens // size * size - (job.cached or 0)) for job in prompts),
        )

    def _first(self, job: Job) -> bool:
        """Whether no sequence before it has the very same prompt: ``n`` sequences of one follow each other."""
        place = self._places[job]
        return place == 0 or self.asks[place].ids is not self.asks[place - 1].ids

    def _cached(self, job: Job) -> int:
        transfer = self.asks[self._places[job]].transfer
        if transfer is not None and transfer.remote_cached is not None:
            return transfer.remote_cached
        return job.cached or 0

    def _piece(self, index: int, output: Output) -> Piece:
        self.tokens[index].append(output.token)
        text = "" if output.token == self._eos else self._spelling.get(output.token, "")
        whole = self.texts[index] + text
        for stop in self.asks[index].stop:
            place = whole.find(stop)
            if place >= 0:
                text = whole[len(self.texts[index]) : place]
                self.texts[index] = whole[:place]
                self.finishes[index], self.stops[index] = Finish.STOP, stop
                self._stream.end(output.job, Finish.STOP)
                return Piece(index, text, output.token, Finish.STOP, stop)
        self.texts[index] = whole
        self.finishes[index] = output.finish
        return Piece(index, text, output.token, output.finish)
