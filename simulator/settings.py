"""What one simulated engine is: sizes, seconds, and which of vLLM's options it was "started with"."""

from __future__ import annotations

from dataclasses import dataclass

CONNECTORS = ("none", "nixl", "nixl-push", "mooncake", "sglang", "shared-storage")
ROLES = ("both", "producer", "consumer")
FAILURE_POLICIES = ("fail", "recompute")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One engine. Sizes are in tokens, times in seconds.

    Names: ``served_name`` is the first served name (the one in metrics), ``aliases`` more names of the same model,
    ``adapters`` LoRA adapters (their blocks are their own).

    Memory: ``num_blocks`` of ``block_size`` tokens; one of them is vLLM's null block and never used.
    Batching: ``max_num_seqs`` requests at once, ``max_batched_tokens`` in one step.
    ``max_queued``: waiting requests beyond which a new one gets 503 (``--max-num-queued-reqs``); None: no limit.

    Time of one step: ``step_seconds`` + ``prefill_base_seconds`` if it computes prompt tokens
    + ``prefill_token_seconds`` for each of these + ``prefill_context_seconds`` x (such a token x a token before it)
    + ``step_request_seconds`` x requests that decode + ``kv_token_seconds`` x their resident tokens.

    ``tokenizer``: a folder (see ``simulator.tokenizer``); None: bytes. ``answer_tokens``: length of an answer that no
    limit ends earlier, its end-of-text token included. ``seed``: of the answers' text and of the block hashes.

    ``kv_events``, ``replay``: publish them, and on which port (0: any; rank r takes port + r). ``kv_connect``: the
    address that the publishers connect to, rank r to its port + r; None: they are bound. ``positional_events``:
    events as arrays, as before vLLM 0.24. ``bytes_hashes``: 32 bytes, not 64-bit integers. ``buffer_steps``: batches
    that a replay can still send. ``replay_limit``: messages that a slow reader of a replay may have outstanding before
    the rest is dropped without a word (vLLM: 1000); 0: no limit.

    ``ranks``: data-parallel ranks, each with its own blocks and queue. ``report_cached_tokens``:
    ``--enable-prompt-tokens-details``. ``echo_request_id``: ``--enable-request-id-headers``. ``dev_mode``:
    ``/reset_prefix_cache``, ``/server_info``, ``/sleep`` and ``/wake_up`` exist. ``scale_out``:
    ``--enable-scale-out``, those that render.
    ``image_tokens``: of each image; 0: the model takes none. ``render_seconds``: what rendering one takes.

    KV hand-over: ``connector`` is the protocol (see ``simulator.transfer``), ``kv_role`` which legs it takes (SGLang's
    must be one of the two). ``kv_lease_seconds``: how long a NIXL prefill engine keeps blocks that nobody reads.
    ``kv_load_failure_policy``: what becomes of a request whose KV does not come. ``handshake_timeout``: seconds until
    a silent remote engine has failed; vLLM's is fixed. ``side_channel_host`` is told to the decode engine (vLLM's
    default is "localhost"), ``side_channel_port`` is rank 0's, the others' follow; 0: any. ``kv_transfer_seconds``: of
    each token that is moved. ``bootstrap_port``: of a Mooncake or SGLang producer; 0: any. ``pairing_timeout``: seconds
    that one leg waits for the other where both are sent at once (Mooncake's abort timeout, SGLang's bootstrap
    timeout). ``storage``: the folder of a shared storage.
    """

    served_name: str = "sim"
    aliases: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    block_size: int = 16
    num_blocks: int = 4096
    max_model_len: int = 32768
    max_num_seqs: int = 256
    max_batched_tokens: int = 8192
    max_queued: int | None = None
    step_seconds: float = 0.002
    step_request_seconds: float = 0.0
    kv_token_seconds: float = 0.0
    prefill_base_seconds: float = 0.0
    prefill_token_seconds: float = 2e-6
    prefill_context_seconds: float = 0.0
    tokenizer: str | None = None
    answer_tokens: int = 128
    seed: int = 0
    kv_events: bool = True
    replay: bool = True
    kv_port: int = 0
    replay_port: int = 0
    kv_connect: str | None = None
    positional_events: bool = False
    bytes_hashes: bool = False
    topic: str = ""
    buffer_steps: int = 10_000
    replay_limit: int = 0
    ranks: int = 1
    api_key: str | None = None
    version: str = "0.32.0"
    report_cached_tokens: bool = True
    echo_request_id: bool = False
    dev_mode: bool = True
    scale_out: bool = False
    image_tokens: int = 0
    render_seconds: float = 0.0
    connector: str = "nixl"
    kv_role: str = "both"
    kv_lease_seconds: float = 30.0
    kv_load_failure_policy: str = "fail"
    handshake_timeout: float = 5.0
    side_channel_host: str = "127.0.0.1"
    side_channel_port: int = 0
    kv_transfer_seconds: float = 0.0
    bootstrap_port: int = 0
    pairing_timeout: float = 480.0
    storage: str | None = None

    def __post_init__(self) -> None:
        for name in ("block_size", "max_model_len", "max_num_seqs", "max_batched_tokens", "answer_tokens", "ranks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        # vLLM refuses to start as well if one longest request does not fit; a small pool is a test's usual wish, so
        # here only the null block and one more are asked for, and a prompt that can never fit is refused.
        if self.num_blocks < 2:
            raise ValueError("num_blocks must be at least 2: one is the null block")
        for name in (
            "step_seconds",
            "step_request_seconds",
            "kv_token_seconds",
            "prefill_base_seconds",
            "prefill_token_seconds",
            "prefill_context_seconds",
            "kv_lease_seconds",
            "kv_transfer_seconds",
            "handshake_timeout",
            "pairing_timeout",
            "image_tokens",
            "render_seconds",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0 seconds")
        for name, allowed in (
            ("connector", CONNECTORS),
            ("kv_role", ROLES),
            ("kv_load_failure_policy", FAILURE_POLICIES),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}")
        if self.connector == "sglang" and self.kv_role == "both":
            raise ValueError("an SGLang engine has one kv_role: producer or consumer")
        if self.connector == "shared-storage" and self.storage is None:
            raise ValueError("shared-storage needs a folder: storage")

    @property
    def names(self) -> tuple[str, ...]:
        """Every name a request may use."""
        return (self.served_name, *self.aliases, *self.adapters)

    @property
    def capacity_tokens(self) -> int:
        """As an engine reports it: the null block is counted."""
        return self.num_blocks * self.block_size

    @property
    def longest(self) -> int:
        """Tokens that one request can hold, prompt and answer together."""
        return min(self.max_model_len, (self.num_blocks - 1) * self.block_size)
