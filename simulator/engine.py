"""The engine: continuous batching with chunked prefill over a block pool, stepped by whoever owns the time.

    step = engine.begin(now)            # choose the batch, take its blocks
    ... step.seconds pass, in real or in virtual time ...
    outputs = engine.finish(step, now)  # the sampled tokens; then engine.events() are what the step announces

vLLM V1's scheduler in its default settings: first come first served, running requests first, a prompt is computed in
chunks, a request that finds no block takes those of the youngest. Pure: no clock, no chance, no sockets.

A job that waits for KV from elsewhere takes its blocks and leaves the queue: ``begun`` names it, and whoever moves the
KV says ``arrive`` or ``lose``. The blocks of a job that keeps them stay in use until ``free``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from simulator.blocks import BlockPool, KvEvent
from simulator.job import Finish, Job, Output
from simulator.settings import EngineSettings
from simulator.stats import EngineStats


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass: which jobs compute how many tokens, and how long it takes (``seconds``)."""

    batch: tuple[tuple[Job, int], ...]
    seconds: float


class Engine:
    """One rank. ``asleep``: the level at which it sleeps, 0..2; None: it is awake. Whoever steps it heeds that."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.pool = BlockPool(settings.num_blocks, settings.block_size)
        self.running: list[Job] = []
        self.waiting: deque[Job] = deque()
        self.loading: dict[Job, None] = {}
        self.loaded: deque[Job] = deque()
        self.kept: dict[Job, None] = {}
        self.stats = EngineStats()
        self.asleep: int | None = None
        self._begun: list[Job] = []

    @property
    def queued(self) -> int:
        """Jobs that are not in the batch, whatever they wait for."""
        return len(self.waiting) + len(self.loaded) + sum(1 for job in self.loading if job.finish is None)

    @property
    def fetching(self) -> dict[str, int]:
        """Jobs whose KV comes from elsewhere, by how far that is: vLLM's words."""
        return {
            "waiting_to_start": sum(1 for job in self.waiting if job.waits),
            "in_progress": sum(1 for job in self.loading if job.finish is None),
            "completed_waiting": len(self.loaded),
        }

    def submit(self, job: Job) -> None:
        """Queue a job. Raises ValueError for one that could never run."""
        if not 1 <= job.prompt_tokens < self.settings.longest or job.max_tokens < 1:
            raise ValueError(f"{job.prompt_tokens} + {job.max_tokens} tokens do not fit {self.settings.longest}")
        self.waiting.append(job)

    def abort(self, job: Job, reason: Finish = Finish.ABORT) -> bool:
        """End a job now, whatever it is doing; its blocks are free at once. False if it had ended already.

        But the blocks of one whose KV is on its way stay in use until that has come: somebody writes into them.
        None are kept for others, not even where a stop string is the reason.
        """
        if job.finish is not None:
            return False
        job.keeps = ()
        if job in self.running:
            self.running.remove(job)
        elif job in self.loaded:
            self.loaded.remove(job)
        elif job not in self.loading:
            self.waiting.remove(job)
        self._end(job, reason)
        return True

    def begun(self) -> list[Job]:
        """The jobs that have taken their blocks and wait for KV since the last call."""
        begun, self._begun = self._begun, []
        return begun

    def arrive(self, job: Job) -> None:
        """The KV of a job that waits is in its blocks."""
        if job in self.loading:
            del self.loading[job]
            if job.finish is None:
                self.loaded.append(job)
            else:
                self.pool.release(job.blocks)

    def lose(self, job: Job, *, recompute: bool) -> Output | None:
        """The KV of a job that waits does not come: it is computed here, or the job ends (its last output)."""
        if job not in self.loading:
            return None
        del self.loading[job]
        self.pool.release(job.blocks)
        if job.finish is not None:
            return None
        job.blocks, job.named, job.computed = [], 0, 0
        job.remote_tokens, job.cached = 0, None
        if recompute:
            self.waiting.appendleft(job)
            return None
        self._end(job, Finish.ERROR)
        return Output(job, -1, Finish.ERROR)

    def free(self, job: Job) -> bool:
        """Give up the blocks that an ended job kept. False if it keeps none."""
        if job not in self.kept:
            return False
        del self.kept[job]
        self.pool.release(job.blocks)
        return True

    def begin(self, now: float) -> Step | None:
        """The next step, or None while there is nothing to do."""
        batch: list[tuple[Job, int]] = []
        budget = self.settings.max_batched_tokens
        preempted = False
        index = 0
        while index < len(self.running) and budget > 0:
            job = self.running[index]
            count = min(job.pending, budget)
            while not self._grow(job, count):
                preempted = True
                if self._preempt() is job:
                    break
            else:
                batch.append((job, count))
                budget -= count
                index += 1
                continue
            break
        while budget > 0 and not preempted and len(self.running) < self.settings.max_num_seqs:
            # First those that hold blocks already.
            queue = self.loaded or self.waiting
            if not queue:
                break
            job = queue[0]
            if job.waits:
                if not self._reserve(job):
                    break
                queue.popleft()
                continue
            count = self._resume(job, budget, now) if queue is self.loaded else self._admit(job, budget, now)
            if not count:
                break
            queue.popleft()
            self.running.append(job)
            batch.append((job, count))
            budget -= count
        return Step(tuple(batch), self._seconds(batch)) if batch else None

    def finish(self, step: Step, now: float) -> list[Output]:
        """Apply a step that began before: its tokens, in the batch's order."""
        outputs = []
        for job, count in step.batch:
            if job.finish is not None:
                continue
            job.computed += count
            if not job.pending:
                outputs.append(self._sample(job, now))
        self.running = [job for job in self.running if job.finish is None]
        self.stats.iteration_tokens.observe(sum(count for _, count in step.batch))
        return outputs

    def clear(self) -> bool:
        """Forget all cached blocks; announced with the next step's events. False while a request runs."""
        return self.pool.clear()

    def events(self) -> list[KvEvent]:
        """What the steps so far have to announce."""
        return self.pool.drain()

    def _reserve(self, job: Job) -> bool:
        """Take the blocks that a job's KV will come into. False: there is no room."""
        hits = self._hits(job)
        local = len(hits) * self.settings.block_size
        known = max(local, min(job.remote_tokens, len(job.tokens)))
        wanted = -(-known // self.settings.block_size) - len(hits)
        if not self.pool.fits(hits, wanted):
            return False
        self._use(job, hits, known)
        job.blocks = [*hits, *self.pool.take(wanted)]
        job.waits = False
        self.loading[job] = None
        self._begun.append(job)
        return True

    def _resume(self, job: Job, budget: int, now: float) -> int:
        """Let a job go on whose KV has come. Returns the tokens that it computes in this step; 0: there is no room."""
        if not self.pool.fits((), -(-len(job.tokens) // self.settings.block_size) - len(job.blocks)):
            return 0
        full = job.computed // self.settings.block_size
        self.pool.name(job.blocks, job.chain, job.tokens, job.named, full)
        job.named = max(job.named, full)
        return self._schedule(job, budget, now)

    def _admit(self, job: Job, budget: int, now: float) -> int:
        """Give a waiting job its blocks. Returns the tokens that it computes in this step; 0: there is no room."""
        hits = self._hits(job)
        local = len(hits) * self.settings.block_size
        # The whole prompt must find room, not only its first chunk: else long prompts preempt each other for ever.
        if not self.pool.fits(hits, -(-len(job.tokens) // self.settings.block_size) - len(hits)):
            return 0
        self._use(job, hits, max(local, min(job.remote_tokens, len(job.tokens))))
        return self._schedule(job, budget, now)

    def _hits(self, job: Job) -> list[int]:
        job.chain.extend(job.tokens)
        # At least the last token must be computed: there is nothing to sample from otherwise. So the last block of a
        # prompt that ends with a block is computed, and announced, again.
        return self.pool.match(job.chain.names, (len(job.tokens) - 1) // self.settings.block_size)

    def _use(self, job: Job, hits: list[int], known: int) -> None:
        """Begin a job with the blocks that hold its first tokens; ``known``: those that need not be computed."""
        self.pool.touch(hits)
        if job.report_hits and hits and job.cached is None:
            self.pool.announce(job.chain, job.tokens, 0, len(hits))
        job.blocks, job.named, job.computed = hits, len(hits), known
        if job.preemptions:
            return
        job.local, job.cached = len(hits) * self.settings.block_size, known
        stats = self.stats
        stats.prefix_queries += job.prompt_tokens
        stats.prefix_hits += job.local
        if self.settings.connector != "none":
            stats.external_queries += job.prompt_tokens - job.local
            stats.external_hits += known - job.local

    def _schedule(self, job: Job, budget: int, now: float) -> int:
        """Take blocks for the first tokens that a job computes itself; there must be some. Returns how many tokens."""
        job.computed = min(job.computed, len(job.tokens) - 1)
        count = min(job.pending, budget)
        if not self._grow(job, count):
            raise AssertionError("the pool was asked first")
        if job.scheduled_at is None:
            job.scheduled_at = now
            stats = self.stats
            stats.prompt_tokens += job.prompt_tokens
            stats.local_hits += job.local
            stats.transferred += (job.cached or 0) - job.local
            stats.request_queue_time.observe(now - job.arrived)
            stats.request_prefill_kv_computed_tokens.observe(job.prompt_tokens - (job.cached or 0))
        return count

    def _grow(self, job: Job, count: int) -> bool:
        """Blocks for ``count`` more tokens, and names for those that they fill. False if there are too few."""
        size = self.settings.block_size
        end = job.computed + count
        wanted = -(-end // size) - len(job.blocks)
        if wanted > 0:
            if wanted > self.pool.free:
                return False
            job.blocks.extend(self.pool.take(wanted))
        full = end // size
        if full > job.named:
            job.chain.extend(job.tokens)
            self.pool.name(job.blocks, job.chain, job.tokens, job.named, full)
            job.named = full
        return True

    def _preempt(self) -> Job:
        """Take the youngest running job's blocks; it starts again from the queue's head."""
        job = self.running.pop()
        self.pool.release(job.blocks)
        job.blocks, job.named, job.computed = [], 0, 0
        job.remote_tokens = 0
        job.preemptions += 1
        self.stats.preemptions += 1
        self.waiting.appendleft(job)
        return job

    def _sample(self, job: Job, now: float) -> Output:
        if job.pooling:
            self._end(job, Finish.STOP)
            return Output(job, -1, job.finish)
        token = next(job.sampler)
        job.tokens.append(token)
        stats = self.stats
        stats.generation_tokens += 1
        if job.generated == 1:
            job.first_token_at = now
            stats.time_to_first_token.observe(now - job.arrived)
            stats.request_prefill_time.observe(now - (job.scheduled_at or 0.0))
        else:
            stats.inter_token_latency.observe(now - job.last_token_at)
        job.last_token_at = now
        if token == job.eos:
            self._end(job, Finish.STOP)
        elif job.generated >= job.max_tokens or len(job.tokens) >= self.settings.longest:
            self._end(job, Finish.LENGTH)
        return Output(job, token, job.finish)

    def _end(self, job: Job, reason: Finish) -> None:
        job.finish = reason
        if reason in job.keeps:
            self.kept[job] = None
        elif job not in self.loading:
            self.pool.release(job.blocks)
        stats = self.stats
        stats.finished[reason] += 1
        if job.generated:
            decode = job.last_token_at - job.first_token_at
            stats.e2e_request_latency.observe(job.last_token_at - job.arrived)
            stats.request_inference_time.observe(job.last_token_at - (job.scheduled_at or 0.0))
            stats.request_decode_time.observe(decode)
            stats.request_time_per_output_token.observe(decode / max(1, job.generated - 1))
        stats.request_prompt_tokens.observe(job.prompt_tokens)
        stats.request_generation_tokens.observe(job.generated)
        stats.request_max_num_generation_tokens.observe(job.generated)
        stats.request_params_n.observe(1)
        stats.request_params_max_tokens.observe(job.max_tokens)
        stats.request_num_preemptions.observe(job.preemptions)

    def _seconds(self, batch: list[tuple[Job, int]]) -> float:
        settings = self.settings
        seconds = settings.step_seconds
        prefills = False
        for job, count in batch:
            if job.generated and count == 1:
                seconds += settings.step_request_seconds + settings.kv_token_seconds * job.computed
            else:
                prefills = True
                context = job.computed + count / 2
                seconds += count * (settings.prefill_token_seconds + settings.prefill_context_seconds * context)
        return seconds + settings.prefill_base_seconds if prefills else seconds
