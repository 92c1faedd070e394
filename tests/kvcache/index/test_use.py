"""Covers: gateway/kvcache/index/use.py, gateway/kvcache/index/predictions.py."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import ManualClock
from gateway.core.prompt import Prompt
from gateway.framework.match import Source
from gateway.kvcache.index.predictions import COMPUTED_WITHIN, EVENTS_WITHIN
from tests.kvcache.conftest import CLEARED, endpoint, ids, index_of, removed, stored
from tests.support.examples import examples

prompts = st.lists(st.integers(0, 1), min_size=1, max_size=5)
steps = st.tuples(
    st.sampled_from(["place", "compute", "end", "give-up", "store", "evict", "clear", "wait"]),
    prompts,
    st.integers(0, 9),
)


class Engine:
    """One engine and its requests, as sets. A block is named by all tokens up to its end.

    ``live``: of each request [its use, its blocks, those that are predicted whatever the engine held, until when].
    """

    def __init__(self):
        self.clock = ManualClock()
        self.index = index_of(1, clock=self.clock)
        self.index.set_complete(0)
        self.index.apply_one(0, stored([1], ids(9)))
        self.held = set()
        self.live = []

    def place(self, prompt, _):
        use = self.index.placed(self.keys(prompt), endpoint(0))
        self.live.append([use, names(prompt), set(names(prompt)), self.clock.now + COMPUTED_WITHIN])

    def compute(self, _, number):
        if self.live:
            one = self.live[number % len(self.live)]
            one[0].computed()
            if one[1]:
                one[1:] = [(), one[2] - self.held, min(one[3], self.clock.now + EVENTS_WITHIN)]

    def end(self, _, number):
        if self.live:
            self.compute(_, number)
            self.live[number % len(self.live)][0].end(computed=True)

    def give_up(self, _, number):
        if self.live:
            one = self.live[number % len(self.live)]
            one[0].end()
            if one[1]:
                self.live.remove(one)

    def store(self, prompt, _):
        known = next((at for at, name in enumerate(names(prompt)) if name not in self.held), len(prompt))
        if new := names(prompt)[known:]:
            parent = hash(names(prompt)[known - 1]) if known else None
            self.index.apply(0, [stored([hash(name) for name in new], ids(*prompt[known:]), parent=parent)])
            self.held.update(new)
            for one in self.live:
                if not one[1]:
                    one[2] -= set(new)

    def evict(self, prompt, _):
        gone = [name for name in reversed(names(prompt)) if name in self.held]
        self.index.apply(0, [removed(hash(name)) for name in gone])
        self.held -= set(gone)

    def clear(self, _, __):
        self.index.apply_one(0, CLEARED)
        self.index.apply_one(0, stored([1], ids(9)))
        self.held.clear()
        self.live = []

    def wait(self, prompt, number):
        self.clock.now += 100 if number == 9 else number
        self.index.match(self.keys(prompt), 1, [])
        self.live = [one for one in self.live if one[3] > self.clock.now]

    def keys(self, prompt):
        return self.index.keys(Prompt(ids(*prompt), 16 * len(prompt), True))


def names(prompt):
    return [tuple(prompt[: end + 1]) for end in range(len(prompt))]


@examples(300)
@given(st.lists(steps, max_size=25), prompts)
def test_what_is_held_and_what_requests_will_have_put_there(steps, prompt):
    engine = Engine()
    for step, about, number in steps:
        getattr(engine, step.replace("-", "_"))(about, number)
        for asked in (prompt, about):
            blocks, predicted = names(asked), set().union(*(one[2] for one in engine.live))
            depth = next((at for at, name in enumerate(blocks) if name not in engine.held | predicted), len(blocks))
            match = engine.index.match(engine.keys(asked), 16 * len(asked) + 1, [endpoint(0)])[0]
            assert match.gpu == match.tokens == 16 * depth
            if depth:
                assert match.source is (Source.EVENTS if blocks[depth - 1] in engine.held else Source.PREDICTED)


def test_what_a_waiting_request_needs_is_predicted_once_it_is_evicted():
    engine = Engine()
    engine.store([0, 0, 0], 0)
    engine.place([0, 0, 0, 1], 0)
    state = engine.index._states[0]
    assert sum(bits.bit_count() for bits in engine.live[0][0].prediction.marks.values()) == 1, "the last block only"
    engine.evict([0, 0, 0], 0)
    keys = engine.keys([0, 0, 0, 1])
    match = engine.index.match(keys, 65, [endpoint(0)])[0]
    assert (match.gpu, match.source) == (64, Source.PREDICTED)
    engine.live[0][0].end()
    assert engine.index.match(keys, 65, [endpoint(0)]) == {}
    assert not state.blocks.order.used
