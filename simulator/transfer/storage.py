"""Shared storage: every engine writes the KV of its prompts into a folder, and finds there what others wrote.

vLLM 0.32's ExampleConnector (once SharedStorageConnector): no parameters. A prompt is found as a whole or not at all,
by a hash of its whole blocks but for the last token. As there, a prompt one token longer than its whole blocks is
looked for under another name than it was stored under, and never found.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from pathlib import Path

from simulator.engine import Engine
from simulator.job import Finish, Job
from simulator.settings import EngineSettings
from simulator.transfer.connector import Connector
from simulator.transfer.content import encode_content

LAYER = "model.layers.0.self_attn.attn.safetensors"
"""The file of a layer; one stands for all."""


class SharedStorage(Connector):
    """Loads are synchronous there: nothing waits."""

    def __init__(self, settings: EngineSettings, engine: Engine, name: str, rank: int) -> None:
        super().__init__(settings, engine, name, rank)
        self._folder = Path(settings.storage or "")

    def enter(self, job: Job) -> None:
        length = self._aligned(job.prompt_tokens - 1)
        path = self._path(job.tokens[:length])
        if path.parent.is_dir():
            # What the adapter is plays no part in the name: another's KV is taken for one's own.
            job.remote_tokens = length
            job.garbled = path.read_bytes() != encode_content(job.tokens[:length], job.chain.adapter)

    def ended(self, job: Job) -> None:
        if job.finish not in (Finish.LENGTH, Finish.STOP) or job.remote_tokens:
            return
        kept = job.tokens[: self._aligned(job.prompt_tokens)]
        path = self._path(kept)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_content(kept, job.chain.adapter))

    def _aligned(self, count: int) -> int:
        """vLLM's ``align_to_block_size``: the whole blocks of all but the last token."""
        return max(0, (count - 1) // self.settings.block_size * self.settings.block_size)

    def _path(self, tokens: Sequence[int]) -> Path:
        digest = hashlib.md5(array("q", tokens).tobytes(), usedforsecurity=False).hexdigest()
        return self._folder / digest / LAYER
