"""The engine: continuous batching with chunked prefill over a block pool, stepped by whoever owns the time.

    step = engine.begin(now)            # choose the batch, take its blocks
    ... step.seconds pass, in real or in virtual time ...
    outputs = engine.finish(step, now)  # the sampled tokens; then engine.events() are what the step announces

vLLM V1's scheduler in its default settings: first come first served, running requests first, a prompt is computed in
chunks, a request that finds no block takes those of the youngest. Pure: no clock, no chance, no sockets.
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
    """One rank."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.pool = BlockPool(settings.num_blocks, settings.block_size)
        self.running: list[Job] = []
        self.waiting: deque[Job] = deque()
        self.stats = EngineStats()

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens of waiting requests."""
        return sum(job.prompt_tokens for job in self.waiting)

    def submit(self, job: Job) -> None:
        """Queue a job. Raises ValueError for one that could never run."""
        if not 1 <= job.prompt_tokens < self.settings.longest or job.max_tokens < 1:
            raise ValueError(f"{job.prompt_tokens} + {job.max_tokens} tokens do not fit {self.settings.longest}")
        self.waiting.append(job)

    def abort(self, job: Job, reason: Finish = Finish.ABORT) -> bool:
        """End a job now, whatever it is doing; its blocks are free at once. False if it had ended already."""
        if job.finish is not None:
            return False
        if job in self.running:
            self.running.remove(job)
        else:
            self.waiting.remove(job)
        self._end(job, reason)
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
        while self.waiting and budget > 0 and not preempted and len(self.running) < self.settings.max_num_seqs:
            count = self._admit(self.waiting[0], budget, now)
            if not count:
                break
            job = self.waiting.popleft()
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

    def _admit(self, job: Job, budget: int, now: float) -> int:
        """Give a waiting job its blocks. Returns the tokens that it computes in this step; 0: there is no room."""
        job.chain.extend(job.tokens)
        size = self.settings.block_size
        # At least the last token must be computed: there is nothing to sample from otherwise. So the last block of a
        # prompt that ends with a block is computed, and announced, again.
        hits = self.pool.match(job.chain.names, (len(job.tokens) - 1) // size)
        local = len(hits) * size
        start = max(local, min(job.remote_tokens, len(job.tokens) - 1))
        # The whole prompt must find room, not only its first chunk: else long prompts preempt each other for ever.
        if not self.pool.fits(hits, -(-len(job.tokens) // size) - len(hits)):
            return 0
        self.pool.touch(hits)
        if job.report_hits and hits and job.cached is None:
            self.pool.announce(job.chain, job.tokens, 0, len(hits))
        job.blocks = hits
        job.named = len(hits)
        job.computed = start
        count = min(len(job.tokens) - start, budget)
        if not self._grow(job, count):
            raise AssertionError("the pool was asked first")
        if job.cached is None:
            job.cached = start
            job.scheduled_at = now
            self._count_prompt(job, local, start)
        return count

    def _count_prompt(self, job: Job, local: int, start: int) -> None:
        stats = self.stats
        stats.prefix_queries += job.prompt_tokens
        stats.prefix_hits += local
        stats.local_hits += local
        stats.prompt_tokens += job.prompt_tokens
        if self.settings.nixl:
            stats.external_queries += job.prompt_tokens - local
            stats.external_hits += max(0, min(job.remote_tokens, job.prompt_tokens) - local)
        stats.request_queue_time.observe(job.scheduled_at - job.arrived)
        stats.request_prefill_kv_computed_tokens.observe(job.prompt_tokens - start)

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
            stats.request_prefill_time.observe(now - job.scheduled_at)
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
        self.pool.release(job.blocks)
        stats = self.stats
        stats.finished[reason] += 1
        if job.generated:
            decode = job.last_token_at - job.first_token_at
            stats.e2e_request_latency.observe(job.last_token_at - job.arrived)
            stats.request_inference_time.observe(job.last_token_at - job.scheduled_at)
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
