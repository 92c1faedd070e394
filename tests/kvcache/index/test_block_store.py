from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import ManualClock
from gateway.kvcache.index.block_store import BlockStore
from gateway.kvcache.index.block_table import BlockTable
from gateway.kvcache.index.hash_map import Packing
from gateway.kvcache.index.holders import BELOW, ON_GPU, holders
from gateway.kvcache.index.layers import LAYERS, Layer
from gateway.kvcache.index.predictions import Predictions
from tests.kvcache.conftest import held_at, keys_of
from tests.support.examples import examples

ALL = Packing(above=0, recent=10**9, least=0, most=0, batch=1)

prompts = st.lists(
    st.tuples(
        st.lists(st.integers(0, 9), min_size=1, max_size=4),
        st.booleans(),
        st.sampled_from(["GPU", "GPU and CPU", "CPU"]),
    ),
    min_size=1,
    max_size=20,
)
"""Blocks of each; whether the engine has them under other hashes, too; where it has the last."""


class Scene:
    """The stores of two endpoints that hold the same ``prompts``, the second on the GPU only and once; of the first,
    ``packed`` hashes are packed."""

    def __init__(self, prompts, packed):
        self.table = BlockTable()
        predictions = Predictions(self.table, ManualClock())
        self.store, self.other = (BlockStore(self.table, column, predictions) for column in (0, LAYERS))
        self.prompts = [prompt for prompt, *_ in prompts]
        for prompt, twice, _ in prompts:
            self.put(self.store, prompt)
            self.put(self.other, prompt)
            if twice:
                self.put(self.store, prompt, again=True)
        self.store.known.pack(ALL, packed)
        for prompt, _, where in prompts:
            if where != "GPU":
                self.store.add_copy(self.named(prompt), Layer.CPU)
            if where == "CPU":
                self.store.remove_copy(self.named(prompt), Layer.GPU)

    @staticmethod
    def named(prompt, again=False):
        return hash((again, *prompt)) & (2**64 - 1)

    def put(self, store, prompt, again=False):
        behind = -1
        for end in range(1, len(prompt) + 1):
            name = self.named(prompt[:end], again)
            if name not in store.known:
                store.store([name], [keys_of(*prompt)[end - 1]], behind)
            behind = store.known[name]

    def depths(self, column):
        """Leading blocks of each prompt that are held in an endpoint's columns."""
        groups = [holders(keys_of(*prompt), self.table, 1 << column, ON_GPU, BELOW)[0] for prompt in self.prompts]
        return [group[0][1] if group else 0 for group in groups]


@examples(60)
@given(prompts, st.integers(1, 80))
def test_a_reset_may_be_closed_at_every_step(prompts, packed):
    for step in range(len(Scene(prompts, packed).store.known) + 1):
        scene = Scene(prompts, packed)
        work = scene.store.clear_gpu()
        for _ in range(step):
            next(work)
        work.close()
        for _ in scene.store.remove_all():
            pass
        assert scene.depths(0) == [0] * len(prompts), "another endpoint with this column would be taken to hold them"
        assert not any(held_at(scene.table, layer) for layer in range(LAYERS))
        assert scene.depths(LAYERS) == list(map(len, scene.prompts)), "another endpoint's blocks stay"
        for _ in scene.other.remove_all():
            pass
        assert scene.table.size == 0
