"""Which fields and headers pass from a client to an engine, and which headers the gateway reads."""

from __future__ import annotations

import re
from dataclasses import dataclass

NEVER = frozenset(
    {
        "kv_transfer_params",
        "ec_transfer_params",
        # SGLang: where a decode engine fetches KV from, and which rank serves.
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "bootstrap_pair_key",
        "decode_tp_size",
        "data_parallel_rank",
        "data_parallel_rank_decode",
        "routed_dp_rank",
        "disagg_prefill_dp_rank",
        # TensorRT-LLM: the same.
        "disaggregated_params",
    }
)
"""Fields that only the gateway may set, since it chooses the prefill and the decode engine."""


@dataclass(frozen=True, slots=True)
class PassThroughSettings:
    """``vllm_xargs``: keys of that body field that pass; all others are removed, since one can kill an engine.

    ``steering_headers``: headers that steer an engine (``x-data-parallel-rank``, ``x-vllm-priority``,
    ``x-session-id``, ...) which a client may send; lower case; none by default.
    ``authorization``: forward the client's ``Authorization`` to engines that have no key of their own.
    ``ask_usage``: ask engines for the usage of streams whose clients do not, and take it out of what those get.
    """

    vllm_xargs: tuple[str, ...] = ()
    steering_headers: tuple[str, ...] = ()
    authorization: bool = False
    ask_usage: bool = True

    def __post_init__(self) -> None:
        for name in self.steering_headers:
            if name != name.lower():
                raise ValueError(f"steering_headers: {name!r} must be lower case")
        for name in self.vllm_xargs:
            if name in NEVER:
                raise ValueError(f"vllm_xargs: {name!r} never passes: it steers a hand-over between engines")


@dataclass(frozen=True, slots=True)
class SloSettings:
    """A model's latency objectives, for requests whose headers set none. Milliseconds; None: no objective.

    ``ttft_ms``: to the first token (``x-slo-ttft-ms``). ``tpot_ms``: from one token to the next (``x-slo-tpot-ms``).
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft_ms", "tpot_ms"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 86_400_000:
                raise ValueError(f"{name} must be above 0 milliseconds, and at most a day")


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The headers and the cookie that name a request's session. They are read before the body's fields (``session_id``,
    ``prompt_cache_key``).

    ``headers``: lower case, the first that is present counts; by default those of vLLM, OpenCode and Claude Code.
    ``cookie``: the name of a cookie; None: none is read.
    """

    headers: tuple[str, ...] = ("x-session-id", "x-session-affinity", "x-claude-code-session-id")
    cookie: str | None = None

    def __post_init__(self) -> None:
        for name in self.headers:
            if not _TOKEN.fullmatch(name) or name != name.lower():
                raise ValueError(f"headers: {name!r} must be a header's name in lower case")
            if name in ("authorization", "cookie", "proxy-authorization", "x-api-key", "api-key"):
                raise ValueError(f"headers: {name!r} holds credentials, which are no session's name")
        if self.cookie is not None and not _TOKEN.fullmatch(self.cookie):
            raise ValueError(f"cookie: {self.cookie!r} must be a cookie's name")


_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""RFC 9110 section 5.6.2."""
