"""How much the index of a model may remember, and where engines connect to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """``max_blocks``: engines' blocks in one model's index, counted for each endpoint that has one, and for removed
    endpoints until they are cleared; some 125 bytes each, less than half in an index of more than 2 million. Beyond it
    the least recently used are dropped. Approximate endpoints are bounded by their engines' capacity. ``block_size``:
    tokens; the unit until the first engine reports its own. ``reannounce``: first requests to an endpoint with an
    unknown past that ask its engine to announce again what it holds of their prompts (vLLM's
    ``kv_cache_report_mode``)."""

    max_blocks: int = 2_000_000
    block_size: int = 16
    reannounce: int = 0

    def __post_init__(self) -> None:
        for name in ("max_blocks", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.reannounce < 0:
            raise ValueError("reannounce must be at least 0")


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """``listen``: ``tcp://ADDRESS:PORT`` that engines connect to with their KV events, rank r to PORT + r; ``*`` is
    every address of this host. None: engines do not connect to us."""

    listen: str | None = None

    def __post_init__(self) -> None:
        if self.listen is None:
            return
        host, _, port = self.listen.removeprefix("tcp://").rpartition(":")
        # An ipc:// address is one that vLLM binds, too.
        if not (self.listen.startswith("tcp://") and host and port.isascii() and port.isdigit() and len(port) <= 5):
            raise ValueError(f"listen: {self.listen!r} must be tcp://ADDRESS:PORT, such as tcp://*:5557")
        if int(port) > 65535:
            raise ValueError("listen: the port must be in 0..65535")
