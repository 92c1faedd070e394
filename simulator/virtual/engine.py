"""``simulator.engine`` in virtual time: the same batches, the same blocks, the same seconds, event by event.

    engine.submit(job, now)
    engine.due                      # when something happens there next; inf: nothing ever
    first, ended = engine.advance() # at engine.due: who got its first token, who has ended

Every running request decodes in every step, so a step in which no prompt is computed takes as long as the one before
plus the same again: k of them are a quadratic, and are taken at once, until one ends, one needs a block, or one comes.
``tests/simulator/virtual`` holds it to ``simulator.engine``, stepped one by one, but for what that one does not do:

- vLLM schedules a step while the one before it runs (``async_scheduling``, its default). So who comes in step n runs in
  n+2, and what ends with step n is known of when n+2 is scheduled: until then it keeps its blocks and its place.
- The weights are read while prompts are computed (``Machine.weights``).
- KV comes from the host's memory, or from another engine (``Job.links``), while others step: who waits for it has taken
  the blocks of its whole prompt, and is scheduled when it is there.

Pure: no clock, and no chance but that of the disturbance it is given.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from math import inf

from simulator.virtual.job import Job
from simulator.virtual.link import carry
from simulator.virtual.machine import Machine
from simulator.virtual.noise import Disturbance
from simulator.virtual.offload import Offload
from simulator.virtual.pool import HOST, Pool, PoolEvent
from simulator.virtual.stride import Stride


class Engine:
    """One engine. ``block_size``: tokens of a block id. ``disturbance``: what its steps take more or less; None:
    nothing."""

    def __init__(self, machine: Machine, block_size: int, disturbance: Disturbance | None = None) -> None:
        self.machine = machine
        self._disturbance = disturbance
        self.block_size = block_size
        self.capacity = machine.kv_tokens // block_size * block_size
        self.pool = Pool(machine.kv_tokens // block_size, machine.host_tokens // block_size)
        self.due = inf
        self.busy = 0.0
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.queries = 0
        self.hits = 0
        # Whose KV is on its way, by when it is there; and those whose KV has come.
        self._loading: list[tuple[float, int, Job]] = []
        self._loaded: deque[Job] = deque()
        self._offload = Offload(self.pool, machine.fetch_token, block_size) if self.pool.host_size else None
        self._news: list[tuple[float, list[PoolEvent]]] = []
        self._turns = 0
        # Ended with the step before the one under way, which was scheduled before that was known: with their blocks.
        self._leaving: list[Job] = []
        # Of the jobs that decode: how many, their resident tokens, and the steps decoded so far; by that count when
        # each one ends, and when it needs a block or has filled one.
        self._decoding = 0
        self._resident = 0
        self._decoded = 0
        self._ends: list[tuple[int, int, Job]] = []
        self._grows: list[tuple[int, int, Job]] = []
        self._stride = Stride()  # the steps under way
        self._chunks: list[tuple[Job, int]] = []

    @property
    def kv_usage(self) -> float:
        """0..1: blocks in use by live requests."""
        return 1.0 - self.pool.free / self.pool.size

    @property
    def queued(self) -> int:
        """Jobs that do not run yet, whatever they wait for."""
        return len(self.waiting) + len(self._loading) + len(self._loaded)

    def submit(self, job: Job, now: float) -> None:
        """Queue a job. Raises ValueError for one that could never run."""
        if job.input_tokens < 1 or job.output_tokens < 1:
            raise ValueError("a request has at least one token, and asks for one")
        if job.input_tokens + job.output_tokens > self.capacity:
            raise ValueError(f"{job.input_tokens} + {job.output_tokens} tokens do not fit {self.capacity}")
        job.arrived = now
        self.waiting.append(job)
        if not self._stride.steps:
            job.eligible = self._decoded
            self.due = now
            return
        # At the end of the step that is under way; or of the next, which has been scheduled already.
        steps = (max(1, self._stride.ended(now)) if self._stride.steps > 1 else 1) + self.machine.async_scheduling
        job.eligible = self._decoded + steps
        if steps < self._stride.steps and len(self.waiting) == 1 and len(self.running) < self.machine.max_num_seqs:
            self._stride.steps = steps
            self.due = self._stride.start + self._stride.seconds(steps)

    def advance(self) -> tuple[list[Job], list[Job]]:
        """Go on to ``due``, which moves. Returns the jobs that got their first token then, and those that ended."""
        now = self.due
        idle = not self._stride.steps
        first, ended = ([], []) if idle else self._finish(now)
        if not self.running or not self.machine.async_scheduling:
            self._leave()
        self._begin(now, idle)
        self._leave()
        return first, ended

    def free(self, job: Job, now: float) -> None:
        """Give up what an ended job has kept."""
        self.pool.release(job.held)
        job.held = []
        if self.waiting and not self._stride.steps:
            self.due = now

    def decoded(self, now: float) -> int:
        """Steps decoded until ``now``, at most ``due``: a job that decodes has generated its ``offset`` more."""
        return self._decoded + (self._stride.done(now) if self._stride.steps > 1 else 0)

    def news(self) -> list[tuple[float, list[PoolEvent]]]:
        """What became of blocks since the last call, with the times when the engine says so: the end of each step,
        so that the last may be in the future."""
        news, self._news = self._news, []
        return news

    @property
    def _wake(self) -> float:
        """When KV has come, or gone, that something may wait for."""
        return min(
            self._loading[0][0] if self._loading else inf, self._offload.next if self._offload is not None else inf
        )

    # one step, or many

    def _begin(self, now: float, idle: bool) -> None:
        self._arrive(now)
        preempted = self._grow_decoding()
        budget = self.machine.max_batched_tokens - self._decoding
        self._chunks = []
        # Only the youngest can be within its prompt: while one is, the budget leaves nothing for the next.
        if self.running and (job := self.running[-1]).offset is None:
            count = min(job.tokens - job.computed, budget)
            if self._grow(job, job.computed + count):
                self._chunks.append((job, count))
                budget -= count
            else:
                preempted = True
                self._preempt()
        alone = not self.running  # then there is no step that was scheduled before
        places = self.machine.max_num_seqs - len(self._leaving)
        while budget > 0 and not preempted and len(self.running) < places:
            if self._loaded and (alone or self._loaded[0].eligible <= self._decoded):
                job = self._loaded.popleft()
            elif self.waiting and (alone or self.waiting[0].eligible <= self._decoded):
                job = self.waiting[0]
                found = self.pool.find(job.ids, (job.tokens - 1) // self.block_size)
                if job.links:
                    found = found[: len(found) - found.count(HOST)]
                wanted = -(-job.tokens // self.block_size) - len(found) + found.count(HOST)
                # The whole prompt must find room, not only its first chunk: else long prompts preempt each other for
                # ever.
                if not self.pool.fits(found, wanted):
                    break
                self.waiting.popleft()
                if self._take_in(job, found, wanted, now):
                    continue
            else:
                break
            count = self._schedule(job, budget)
            self._chunks.append((job, count))
            budget -= count
        self._time(now, preempted)
        if events := self.pool.drain():
            # Scheduled while the step before ran, and said with what that one brought.
            ahead = self.machine.async_scheduling and not idle
            told = now if ahead or not self._stride.steps else now + self._stride.first
            self._news.append((told, events))

    def _time(self, now: float, preempted: bool) -> None:
        """How long the step takes, and how often it can be repeated."""
        wake = self._wake
        if not self._decoding and not self._chunks:
            # One that ran alone may have been preempted for those whose KV has come: they are next.
            self._stride.steps, self.due = 0, now if preempted else wake
            return
        machine = self.machine
        seconds = machine.step + machine.step_request * self._decoding + machine.kv_token * self._resident
        self._stride.start = now
        if self._chunks or preempted:
            self._stride.steps, self._stride.more = 1, 0.0
            prompts = 0.0
            for job, count in self._chunks:
                if job.generated and count == 1:
                    seconds += machine.step_request + machine.kv_token * job.computed
                else:
                    context = job.computed + count / 2
                    prompts += count * (machine.prefill_token + machine.prefill_quadratic * context)
            seconds += max(0.0, prompts - machine.weights)
        else:
            self._stride.steps = self._next_stop() - self._decoded
            if self._leaving and (self.waiting or self._loaded):
                self._stride.steps = 1  # they make room
            for queue in (self.waiting, self._loaded):
                if queue and queue[0].eligible > self._decoded:
                    self._stride.steps = min(self._stride.steps, queue[0].eligible - self._decoded)
            self._stride.more = machine.kv_token * self._decoding
        if self._disturbance is not None:
            self._stride.steps = int(min(self._stride.steps, self._disturbance.calm or 1))
            factor = self._disturbance.factor(self._stride.steps, bool(self._chunks))
            seconds *= factor
            self._stride.more *= factor
        self._stride.first = seconds
        self.due = self._stride.end
        if wake < self.due and self._stride.steps > 1:
            self._stride.steps = max(1, self._stride.ended(wake))
            self.due = self._stride.end

    def _finish(self, now: float) -> tuple[list[Job], list[Job]]:
        self.busy += self._stride.seconds(self._stride.steps)
        self._decoded += self._stride.steps
        self._resident += self._stride.steps * self._decoding
        if self._disturbance is not None:
            self._disturbance.passed(self._stride.steps)
        self._stride.steps = 0
        first: list[Job] = []
        ended: list[Job] = []
        while self._ends and self._ends[0][0] <= self._decoded:
            _, turn, job = heappop(self._ends)
            if job.turn == turn:
                self._stop_decoding(job)
                self._end(job, now)
                ended.append(job)
        for job, count in self._chunks:
            job.computed += count
            if self._offload is not None:
                full = min(job.computed, job.input_tokens) // self.block_size
                self._offload.store(job.ids[job.stored : full], now)
                job.stored = max(job.stored, full)
            if job.computed < job.tokens:
                continue
            job.generated += 1
            if job.first_at is None:
                job.first_at = now
                first.append(job)
            if job.generated >= job.output_tokens:
                self._end(job, now)
                ended.append(job)
            else:
                self._start_decoding(job)
        return first, ended

    def _next_stop(self) -> int:
        """The count of decoded steps at which one that decodes ends, or its blocks change."""
        for heap in (self._ends, self._grows):
            while heap and heap[0][2].turn != heap[0][1]:
                heappop(heap)
        ends = self._ends[0][0]
        return min(ends, self._grows[0][0]) if self._grows else ends

    # requests

    def _take_in(self, job: Job, found: list[int], wanted: int, now: float) -> bool:
        """Give a waiting job the blocks that were found for it. True: it waits for KV, with blocks for its whole
        prompt, ``wanted`` of them more."""
        local = len(found) - found.count(HOST)
        known = job.tokens if job.links else len(found) * self.block_size
        job.held = self.pool.use(found[:local])
        job.named, job.computed = local, min(known, job.tokens - 1)
        if job.began_at is None:
            job.began_at, job.hit_tokens = now, job.computed
            job.fetched_tokens = job.computed - local * self.block_size
            self.queries += job.input_tokens
            self.hits += local * self.block_size if job.links else job.computed
        if local == len(found) and not job.links:
            return False
        job.held += self.pool.take(wanted)
        if job.links:
            moved = job.tokens - local * self.block_size
            there = carry(moved, now, *job.links)
            if job.fetches is not None:
                job.fetches(moved, there)
            job.links = ()  # what it is preempted of later is computed here
        else:
            assert self._offload is not None
            there = self._offload.load(job.ids[local : len(found)], now)
        self._turns += 1
        heappush(self._loading, (there, self._turns, job))
        return True

    def _arrive(self, now: float) -> None:
        """What has come is there."""
        if self._offload is not None:
            self._offload.settle(now)
        while self._loading and self._loading[0][0] <= now:
            job = heappop(self._loading)[2]
            job.eligible = self._decoded + self.machine.async_scheduling
            self._loaded.append(job)

    def _schedule(self, job: Job, budget: int) -> int:
        """Let a job run that has been taken in. Returns the tokens that it computes in this step."""
        self.running.append(job)
        self._turns += 1
        job.turn = self._turns
        count = min(job.tokens - job.computed, budget)
        if not self._grow(job, job.computed + count):
            raise AssertionError("the pool was asked first")
        return count

    def _start_decoding(self, job: Job) -> None:
        job.offset = job.generated - self._decoded
        self._decoding += 1
        self._resident += job.tokens - 1
        heappush(self._ends, (job.output_tokens - job.offset, job.turn, job))
        self._await_growth(job)

    def _stop_decoding(self, job: Job) -> None:
        assert job.offset is not None
        job.generated = job.offset + self._decoded
        job.offset = None
        self._decoding -= 1
        self._resident -= job.tokens - 1

    def _end(self, job: Job, now: float) -> None:
        self.running.remove(job)
        job.turn = -1
        job.ended_at = now
        self._leaving.append(job)

    def _leave(self) -> None:
        """Give up what ended jobs hold."""
        for job in self._leaving:
            if not job.keeps:
                self.pool.release(job.held)
                job.held = []
        self._leaving.clear()

    def _preempt(self) -> Job:
        """Take the youngest running job's blocks; it starts again from the queue's head."""
        job = self.running.pop()
        if job.offset is not None:
            self._stop_decoding(job)
        self.pool.release(job.held)
        job.held, job.named, job.computed, job.turn = [], 0, 0, -1
        job.preemptions += 1
        self.waiting.appendleft(job)
        return job

    # blocks

    def _grow_decoding(self) -> bool:
        """Blocks for the next token of those that decode, in order. True if one had to be preempted for it."""
        preempted = False
        while self._grows and self._grows[0][0] <= self._decoded:
            _, turn, job = heappop(self._grows)
            if job.turn != turn:
                continue
            while not self._grow(job, job.input_tokens + (job.offset or 0) + self._decoded):
                preempted = True
                if self._preempt() is job:
                    break
            else:
                self._await_growth(job)
        return preempted

    def _grow(self, job: Job, end: int) -> bool:
        """Blocks for the first ``end`` tokens of a job, and ids for those that they fill. False if there are too
        few."""
        wanted = -(-end // self.block_size) - len(job.held)
        if wanted > 0:
            if wanted > self.pool.free:
                self._leave()
            if wanted > self.pool.free:
                return False
            job.held += self.pool.take(wanted)
        full = min(end // self.block_size, len(job.ids))
        if full > job.named:
            self.pool.name(job.held, job.ids, job.named, full)
            job.named = full
        return True

    def _await_growth(self, job: Job) -> None:
        """When the next step's token of a job that decodes fills a block that gets an id, or begins one."""
        end = len(job.held) * self.block_size + 1
        if job.named < len(job.ids):
            end = min(end, (job.named + 1) * self.block_size)
        assert job.offset is not None
        heappush(self._grows, (end - job.input_tokens - job.offset, job.turn, job))
