"""Covers: gateway/kvcache/index/cache_index.py, gateway/kvcache/index/coverage.py."""

from __future__ import annotations

from array import array
from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.core.clock import ManualClock
from gateway.core.prompt import Prompt
from gateway.framework.match import Source
from gateway.kvcache.index.hash_map import PACKING, Packing
from gateway.kvcache.settings import CacheSettings
from tests.kvcache.conftest import CLEARED, Index, Tally, endpoint, removed, stored
from tests.support.examples import examples

UNIT = 4
SIZES = (4, 8, 4, 12)
CAPACITY = 40
"""Tokens of an estimate."""


def test_a_reset_in_the_past_does_not_end_the_reading_of_it():
    machine = Naive()
    machine.begin()
    machine.read(0, True)
    machine.reset_slowly(0, 0, [0])
    machine.store(0, [0])
    machine.ask([0])


SOON = Packing(above=0, recent=3, least=1, batch=1)


class Naive(RuleBasedStateMachine):
    """Engines as dictionaries of what they hold on each tier, copies counted; prompts of few different blocks."""

    prompts = st.one_of(
        st.lists(st.integers(0, 2), min_size=1, max_size=9),
        st.builds(lambda first, length: [first] * length, st.integers(0, 2), st.integers(60, 140)),
    )
    engines = st.integers(0, len(SIZES) - 1)
    below = st.sampled_from(["CPU", "STORAGE"])
    whole = True
    """Nothing is forgotten for want of room."""
    max_blocks = 100_000
    packing = PACKING

    @initialize()
    def begin(self):
        self.clock = ManualClock()
        settings = CacheSettings(block_size=UNIT, max_blocks=self.max_blocks)
        self.index = Index(settings, "m", self.clock, Tally(), self.packing)
        self.works = []
        self.held = [{tier: Counter() for tier in ("GPU", "CPU", "STORAGE")} for _ in SIZES]
        self.waiting = [Counter() for _ in SIZES]
        self.reading = [False for _ in SIZES]
        self.partial = [False for _ in SIZES]
        self.endpoints = tuple(endpoint(slot) for slot in range(len(SIZES)))
        for one in self.endpoints:
            self.index.add(one, True)
        self.store(0, [0])
        for slot in range(len(SIZES)):
            self.index.set_complete(slot)

    def empty(self, slot):
        for tier in self.held[slot].values():
            tier.clear()

    def blocks(self, slot, prompt):
        """Every whole block of ``prompt`` on the engine, each as all tokens up to its end."""
        tokens = [number for number in prompt for _ in range(UNIT)]
        size = SIZES[slot]
        return [tuple(tokens[:end]) for end in range(size, len(tokens) + 1, size)]

    def name(self, slot, block):
        return None if not block else hash((slot, block)) & (2**64 - 1)

    def run(self, slot, blocks):
        size = SIZES[slot]
        tokens = [token for block in blocks for token in block[-size:]]
        return stored([self.name(slot, block) for block in blocks], tokens, parent=self.name(slot, blocks[0][:-size]))

    def known(self, slot, block):
        return not block or any(tier[block] for tier in self.held[slot].values())

    @rule(slot=engines, prompt=prompts)
    def store(self, slot, prompt):
        """A request computes what is not held behind its hit, as vLLM announces it."""
        blocks = self.blocks(slot, prompt)
        hit = 0
        while hit < len(blocks) and self.held[slot]["GPU"][blocks[hit]]:
            hit += 1
        new = blocks[hit:] or blocks[-1:]  # a prompt that is held whole has its last block computed again
        if new and self.known(slot, new[0][: -SIZES[slot]]):
            self.index.apply_one(slot, self.run(slot, new))
            self.held[slot]["GPU"].update(new)

    @rule(slot=engines, prompt=prompts)
    def decode(self, slot, prompt):
        """An answer grows by blocks, one a step."""
        for block in self.blocks(slot, prompt):
            if self.known(slot, block[: -SIZES[slot]]) and not self.held[slot]["GPU"][block]:
                self.index.apply(slot, [self.run(slot, [block])])
                self.held[slot]["GPU"][block] += 1

    @rule(slot=engines, prompt=prompts)
    def report(self, slot, prompt):
        """The engine is asked to announce what it holds once more."""
        blocks = self.blocks(slot, prompt)
        hit = 0
        while hit < len(blocks) and self.held[slot]["GPU"][blocks[hit]]:
            hit += 1
        if hit:
            self.index.expect_report(slot, self.keys(prompt))
            self.index.apply_one(slot, self.run(slot, blocks[:hit]))

    @precondition(lambda self: any(tier for held in self.held for tier in held.values()))
    @rule(data=st.data())
    def evict(self, data):
        there = [
            (slot, tier, block)
            for slot, held in enumerate(self.held)
            for tier, blocks in held.items()
            for block in sorted(blocks)
        ]
        slot, tier, block = data.draw(st.sampled_from(there))
        self.index.apply_one(slot, removed(self.name(slot, block), medium=tier))
        self.held[slot][tier] -= Counter([block])

    @rule(slot=engines, count=st.integers(1, 70), medium=st.sampled_from(["GPU", "gpu"]))
    def evict_many(self, slot, count, medium):
        """The longest first, as engines free a sequence from its tail; an event for each, as vLLM does."""
        gone = sorted(self.held[slot]["GPU"], key=lambda block: (-len(block), block))[:count]
        self.index.apply(slot, [removed(self.name(slot, block), medium=medium) for block in gone])
        self.held[slot]["GPU"] -= Counter(gone)

    @rule(slot=engines, prompt=prompts, tier=below, told=st.booleans())
    def offload(self, slot, prompt, tier, told):
        """Blocks go to a tier below: as placeholders, or with their tokens."""
        blocks = [block for block in self.blocks(slot, prompt) if self.known(slot, block)]
        if blocks:
            names = [self.name(slot, block) for block in blocks]
            tokens = [0] * SIZES[slot] * len(names) if told else []
            self.index.apply_one(slot, stored(names, tokens, medium=tier, block_size=SIZES[slot] if told else 0))
            self.held[slot][tier].update(blocks)

    @rule(slot=engines)
    def reset(self, slot):
        self.index.apply_one(slot, CLEARED)
        self.held[slot]["GPU"].clear()

    @rule(slot=engines, steps=st.integers(0, 3), prompt=prompts)
    def reset_slowly(self, slot, steps, prompt):
        """While a reset is worked through, nothing counts of the GPU any more, and everything of what is below."""
        work = self.index.reset_gpu(slot)
        for _ in range(steps):
            next(work, None)
        if steps:
            self.held[slot]["GPU"].clear()
            self.ask(prompt)
        for _ in work:
            pass
        self.held[slot]["GPU"].clear()

    @rule(slot=engines, steps=st.integers(0, 3), prompt=prompts, then=st.sampled_from(["ask", "restart", "replace"]))
    def begin_reset(self, slot, steps, prompt, then):
        """A reset that is not worked through, whatever comes next: more events, another reset, the endpoint's end."""
        self.store(slot, prompt)
        self.offload(slot, prompt[:1], "CPU", False)
        work = self.index.reset_gpu(slot)
        for _ in range(steps):
            next(work, None)
        self.held[slot]["GPU"].clear()
        self.works.append(work)
        if then == "ask":
            self.ask(prompt)
        else:
            getattr(self, then)(slot)

    @precondition(lambda self: getattr(self, "works", None))
    @rule(steps=st.integers(1, 100))
    def go_on(self, steps):
        """Whoever began a reset goes on with it, and does not know what became of it."""
        work = self.works.pop(0)
        for _ in range(steps):
            next(work, None)

    @rule(slot=engines)
    def restart(self, slot):
        self.index.clear(slot)
        self.empty(slot)
        self.reading[slot] = self.partial[slot] = False

    @rule(slot=engines)
    def replace(self, slot):
        self.index.remove(slot)
        self.index.add(endpoint(slot), True)
        self.index.set_complete(slot)
        self.empty(slot)
        self.reading[slot] = self.partial[slot] = False

    @rule(slot=engines, past=st.booleans())
    def read(self, slot, past):
        self.index.set_replaying(slot, past)
        self.reading[slot] = past

    @rule(slot=engines, partial=st.booleans())
    def doubt(self, slot, partial):
        """Whether the engine holds more than it has told."""
        (self.index.set_partial if partial else self.index.set_complete)(slot)
        self.partial[slot] = partial

    @rule(slot=engines, prompt=prompts, then=st.sampled_from(["computed", "withdrawn", "forgotten"]))
    def column(self, slot, prompt, then):
        """What is predicted is gone before anyone asks."""
        use = self.index.placed(self.keys(prompt), endpoint(slot, capacity=CAPACITY))
        if then == "computed":
            use.computed()
        if then != "forgotten":
            use.end()
        self.clock.now += 5 if then == "computed" else 0 if then == "withdrawn" else 300
        for _ in range(10):
            self.index.match(self.keys(prompt), 1, [])

    @rule(budget=st.integers(1, 5))
    def sweep(self, budget):
        self.index.sweep(budget)

    def keys(self, prompt):
        tokens = array("I", [number for number in prompt for _ in range(UNIT)])
        return self.index.keys(Prompt(tokens, len(tokens), True))

    @rule(prompt=prompts)
    def ask(self, prompt):
        keys = self.keys(prompt)
        count = UNIT * len(prompt)
        matches = self.index.match(keys, count, self.endpoints)
        for slot, size in enumerate(SIZES):
            if self.reading[slot]:
                assert matches[slot].source in (Source.ESTIMATED, Source.NONE)
                continue
            depths = {"GPU": 0, "CPU": 0, "STORAGE": 0}
            for block in self.blocks(slot, prompt):
                tier = next((tier for tier, blocks in self.held[slot].items() if blocks[block]), None)
                if tier is None:
                    break
                depths[tier] += size
            match = matches[slot]
            if match.source is Source.ESTIMATED:
                assert self.partial[slot]
                assert match.tokens > sum(depths.values()) or not self.whole
                assert match.cpu + match.storage <= depths["CPU"] + depths["STORAGE"]
            elif self.whole:
                assert (match.gpu, match.cpu, match.storage) == tuple(depths.values())
                assert match.expected_hit == min(sum(depths.values()), (count - 1) // size * size)
            else:
                assert match.tokens <= sum(depths.values())

    @invariant()
    def sizes_agree(self):
        if not hasattr(self, "index"):
            return
        for slot, state in self.index._states.items():
            known = {block for tier in self.held[slot].values() for block, copies in tier.items() if copies}
            if state.reset_work is not None:
                continue
            if self.whole:
                assert len(state.blocks) == len(known)
            else:
                assert len(state.blocks) <= len(known)
        assert sum(len(state.blocks) for state in self.index._states.values()) <= self.max_blocks

    def teardown(self):
        if hasattr(self, "index"):
            for slot in range(len(SIZES)):
                self.index.remove(slot)
            assert self.index.sweep(10**6)
            for work in self.works:
                assert next(work, None) is None
            assert self.index.blocks == 0
            assert self.index._limit.total == 0


class Small(Naive):
    """An index that is too small for what it is told: what it says is true, but not all."""

    whole = False
    max_blocks = 12


class Old(Naive):
    """An index in which hashes are old soon."""

    packing = SOON


class SmallAndOld(Small):
    packing = SOON


Naive.TestCase.settings = Old.TestCase.settings = examples(50, stateful_step_count=50)
Small.TestCase.settings = SmallAndOld.TestCase.settings = examples(30, stateful_step_count=50)
TestNaive = Naive.TestCase
TestSmall = Small.TestCase
TestOld = Old.TestCase
TestSmallAndOld = SmallAndOld.TestCase
