"""What moves in place of KV: the tokens that it was computed from.

The KV of a token depends on it, on all before it and on the adapter, and on nothing else: not on block sizes, salts or
hash seeds. So an engine that compares what came with its own prompt knows what a real one never does.
"""

from __future__ import annotations

from array import array

from simulator.job import Job

BYTES_PER_TOKEN = 2048
"""Of KV, as the captured engine had: two layers, two heads, 64 numbers each for keys and values, float32."""

GARBAGE = b"\x00"
"""The KV of blocks that are somebody else's by now; no whole number of tokens, so nobody's prompt."""


def pack(job: Job) -> bytes:
    """The KV that an ended job's blocks hold."""
    return encode_content(job.tokens[: job.computed], job.chain.adapter)


def encode_content(tokens: array[int], adapter: str | None) -> bytes:
    name = (adapter or "").encode()
    return len(name).to_bytes(4, "big") + name + tokens.tobytes()


def serves(content: bytes, job: Job, count: int) -> bool:
    """Whether a KV is that of a job's first ``count`` tokens; it may go on behind them."""
    return content.startswith(encode_content(job.tokens[:count], job.chain.adapter))
