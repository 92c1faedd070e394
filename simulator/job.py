"""One sequence on its way through an engine. Data and what can be said of it; ``simulator.engine`` moves it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from simulator.blocks import HashChain
from simulator.transfer.parameters import Transfer


class Finish(StrEnum):
    """Why a sequence ended, as ``finish_reason`` says it."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(slots=True, eq=False)
class Job:
    """``tokens``: the prompt, and behind it what has been sampled. ``sampler``: the answer's tokens, without end.

    ``max_tokens``: of the answer, at least 1. ``eos``: the token that ends it; None: only a limit does.
    ``pooling``: it ends with its prompt, and nothing is sampled. ``report_hits``: the blocks that it finds are
    announced once more (``kv_cache_report_mode: full``). Times are the engine's.

    A leg of a split request: ``transfer`` says what its client asked for. ``remote_tokens``: leading prompt tokens
    whose KV comes from elsewhere; at once, or, where it ``waits``, some time after its blocks have been taken.
    ``keeps``: it ends in one of these ways and its blocks stay until somebody frees them. ``garbled``: the KV that
    came is not its prompt's, and so its answer is another.
    """

    id: str
    tokens: array[int]
    max_tokens: int
    sampler: Iterator[int]
    chain: HashChain
    arrived: float
    eos: int | None = None
    pooling: bool = False
    report_hits: bool = False
    transfer: Transfer | None = None
    remote_tokens: int = 0
    waits: bool = False
    keeps: tuple[Finish, ...] = ()
    garbled: bool = False
    prompt_tokens: int = field(init=False)
    computed: int = 0  # tokens whose KV is in ``blocks``
    cached: int | None = None  # of the prompt, found here or elsewhere at the last look; None: not yet looked
    local: int = 0  # of these, found here
    blocks: list[int] = field(default_factory=list)
    named: int = 0  # blocks that have their name
    preemptions: int = 0
    scheduled_at: float | None = None
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    finish: Finish | None = None

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def pending(self) -> int:
        """Tokens that are known and not yet computed."""
        return len(self.tokens) - self.computed


@dataclass(frozen=True, slots=True)
class Output:
    """One sampled token (-1 for a pooled prompt). ``finish`` is set on the last one."""

    job: Job
    token: int
    finish: Finish | None
