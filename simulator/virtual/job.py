"""One request on its way through an engine in virtual time. ``simulator.virtual.engine`` moves it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from simulator.virtual.link import Link


@dataclass(slots=True, eq=False)
class Job:
    """One request. ``ids``: of its blocks; each stands for everything up to its end, and those behind the prompt's name
    what is generated. A block without an id is never found again. Times are the engine's; None until they happen.

    ``hit_tokens``: of the prompt, found on the GPU and the host when it was first scheduled; ``fetched_tokens``: of
    these, on the host. ``links``: over which the KV of its whole prompt comes from another engine, which computed it;
    none: it is computed here. ``fetches``: told of their tokens and when they will be there, once they are on their
    way. ``keeps``: its blocks stay in use after its end, until ``Engine.free``.
    """

    ids: Sequence[int]
    input_tokens: int
    output_tokens: int
    links: tuple[Link, ...] = ()
    fetches: Callable[[int, float], None] | None = None
    keeps: bool = False
    arrived: float = 0.0
    began_at: float | None = None
    first_at: float | None = None
    ended_at: float | None = None
    hit_tokens: int = 0
    fetched_tokens: int = 0
    preemptions: int = 0
    generated: int = field(default=0, init=False, repr=False)  # while it does not decode
    computed: int = field(default=0, init=False, repr=False)  # tokens whose KV is there, while it does not decode
    held: list[int] = field(default_factory=list, init=False, repr=False)
    named: int = field(default=0, init=False, repr=False)  # blocks of ``held`` that have their id
    eligible: int = field(default=0, init=False, repr=False)  # the engine's first step in which it may run
    stored: int = field(default=0, init=False, repr=False)  # blocks that were handed to the host tier
    turn: int = field(default=-1, init=False, repr=False)  # its place among the running, in order; -1: not there
    offset: int | None = field(default=None, init=False, repr=False)  # generated - engine's decoded; None: no decoding

    @property
    def tokens(self) -> int:
        """Known, while it does not decode."""
        return self.input_tokens + self.generated
