from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import ManualClock
from gateway.core.prompt import Prompt
from gateway.fleet.load.ledger import Ledger
from tests.kvcache.conftest import endpoint, ids, index_of, look, removed, stored
from tests.support.examples import examples
from tests.support.ledgers import reserve

ROOM = 26
"""Blocks of the engine."""


class Scene:
    """Endpoint 0 with room for ``blocks`` of 16 tokens."""

    def __init__(self, blocks, **more):
        self.ledger = Ledger(ManualClock())
        self.endpoint = endpoint(0, capacity=16 * blocks, block_size=16)
        self.endpoint.load = self.ledger
        self.index = index_of(0, **more)
        self.index.add(self.endpoint, True)
        self.index.set_complete(0)

    def held(self, *numbers):
        keys = self.keys(*numbers)
        return self.index.match(keys, 16 * len(numbers) + 1, [self.endpoint])[0].tokens // 16

    def keys(self, *numbers):
        return self.index.keys(Prompt(ids(*numbers), 16 * len(numbers), True))

    def under_way(self, blocks):
        """A prompt that takes so many blocks of its own, the one that it fills in part among them."""
        return reserve(self.ledger, 16 * (blocks - 1), 0)


def test_what_is_under_way_takes_the_room_of_what_was_used_least_recently():
    scene = Scene(8)
    scene.index.apply_one(0, stored([11, 12, 13], ids(1, 2, 3)))
    scene.index.apply_one(0, stored([21, 22, 23], ids(4, 5, 6)))
    assert (scene.held(1, 2, 3), scene.held(4, 5, 6)) == (3, 3)
    reservation = scene.under_way(2)  # there is room for two more
    assert (scene.held(1, 2, 3), scene.held(4, 5, 6)) == (3, 3)
    reservation.settle()
    reservation = scene.under_way(4)
    assert (scene.held(1, 2, 3), scene.held(4, 5, 6)) == (1, 3), "a sequence goes from its end"
    reservation.settle()
    assert (scene.held(1, 2, 3), scene.held(4, 5, 6)) == (3, 3)


def test_what_was_used_last_goes_last_and_what_is_in_use_not_at_all():
    scene = Scene(6)
    scene.index.apply_one(0, stored([11, 12, 13], ids(1, 2, 3)))
    scene.index.apply_one(0, stored([21, 22, 23], ids(4, 5, 6)))
    use = scene.index.placed(scene.keys(1, 2, 3), scene.endpoint)
    scene.under_way(4)
    assert (scene.held(1, 2, 3), scene.held(4, 5, 6)) == (3, 0)
    use.computed()
    assert (scene.held(1, 2, 3), scene.held(4, 5, 6)) == (3, 0), "its blocks are in use until its answer is whole"
    use.end()
    assert (scene.held(1, 2, 3), scene.held(4, 5, 6)) == (2, 0), "it was used after the other"


def test_where_the_gpus_evicted_blocks_are_kept_below_nothing_goes():
    scene = Scene(3)
    scene.index.apply_one(0, stored([11, 12, 13], ids(1, 2, 3)))
    scene.under_way(3)
    assert scene.held(1, 2, 3) == 0
    scene.index.apply_one(0, stored([11], [], medium="CPU", block_size=0))
    assert scene.held(1, 2, 3) == 3


def test_of_what_is_not_known_nothing_is_said():
    scene = Scene(3)
    scene.index.apply_one(0, stored([11, 12, 13], ids(1, 2, 3)))
    scene.under_way(3)
    scene.index.set_partial(0)
    assert scene.held(1, 2, 3) == 3
    other = index_of(1)
    other.apply_one(0, stored([11, 12, 13], ids(1, 2, 3)))
    assert look(other, ids(1, 2, 3), count=49).tokens == 48, "its engine has not told its size"


def test_what_is_evicted_leaves_the_order():
    scene = Scene(100)
    order = scene.index._states[0].blocks.order
    for number in range(0, 9000, 3):
        hashes = [number + 1, number + 2, number + 3]
        scene.index.apply_one(0, stored(hashes, ids(*hashes)))
        scene.index.apply_one(0, removed(*reversed(hashes)))
    assert len(order) == len(order._runs) == 0


def test_requests_that_share_a_chunk_end_in_any_order():
    """Each is found at once, however many there are."""
    scene = Scene(100)
    scene.index.apply_one(0, stored([11, 12, 13], ids(1, 2, 3)))
    order = scene.index._states[0].blocks.order
    uses = [scene.index.placed(scene.keys(1, 2, 3), scene.endpoint) for _ in range(4)]
    (chunk,) = order.used
    first, second, third, fourth = (use.prediction for use in uses)
    assert order.used[chunk] == dict.fromkeys((first, second, third, fourth))
    uses[1].end()
    uses[3].end()
    assert order.used[chunk] == dict.fromkeys((first, third))
    uses[0].end()
    assert order.used[chunk] is third
    uses[2].end()
    assert not order.used


class Pool:
    """vLLM's queue of free blocks, as lists. A block is named by all tokens up to its end."""

    def __init__(self):
        self.free = [None] * ROOM

    def serve(self, prompt, index):
        """A request with one token more than its whole blocks, and an answer: two blocks that get no name."""
        names = [tuple(prompt[: end + 1]) for end in range(len(prompt))]
        found = self.held(prompt)
        for name in names[:found]:
            self.free.remove(name)
        gone = [self.free.pop(0) for _ in range(len(names) - found + 2)]
        index.apply(0, [removed(hash(name)) for name in gone if name is not None])
        if new := names[found:]:
            parent = hash(names[found - 1]) if found else None
            index.apply(0, [stored([hash(name) for name in new], ids(*prompt[found:]), parent=parent)])
        return names

    def end(self, names):
        self.free[:0] = [None, None]
        self.free += reversed(names)

    def held(self, prompt):
        names = [tuple(prompt[: end + 1]) for end in range(len(prompt))]
        return next((number for number, name in enumerate(names) if name not in self.free), len(names))


prompts = st.lists(st.integers(0, 2), min_size=1, max_size=ROOM - 4)


@examples(200)
@given(st.lists(prompts, max_size=12), prompts)
def test_it_is_the_order_of_vllms_queue(served, waiting):
    """Requests one after another; then one waits, and it is asked what will be left when it runs."""
    pool, scene = Pool(), Scene(ROOM)
    for prompt in served:
        use = scene.index.placed(scene.keys(*prompt), scene.endpoint)
        names = pool.serve(prompt, scene.index)
        use.computed()
        use.end()
        pool.end(names)
    scene.index.placed(scene.keys(*waiting), scene.endpoint)
    reserve(scene.ledger, 16 * (len(waiting) - pool.held(waiting)) + 1, 0)
    left = {tuple(prompt): scene.held(*prompt) for prompt in served}
    pool.free += pool.serve(waiting, scene.index)
    assert left == {prompt: pool.held(prompt) for prompt in left}
