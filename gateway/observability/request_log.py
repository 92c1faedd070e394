"""The log's observer: one line for each request, and what an operator should read once rather than count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from gateway.framework import Clock, Observer, Settled

# Seconds. A plugin that fails fails on every request, and so expire the leases of an engine whose peer cannot reach it:
# that is worth a line a minute, the counters have the rest.
_REPEAT_AFTER = 60.0


@dataclass(slots=True)
class _Expired:
    """An endpoint's expired leases: its counter as last seen, how many of them are not yet told, and when some were."""

    counter: float
    untold: float = 0.0
    told_at: float | None = None


class RequestLog(Observer):
    """Writes to ``logger``; ``requests`` false: no line for each request."""

    def __init__(self, logger: FilteringBoundLogger, clock: Clock, *, requests: bool = True) -> None:
        self._log = logger
        self._clock = clock
        self._requests = requests
        self._said: set[tuple[str, ...]] = set()
        self._failed: dict[tuple[str, str], tuple[float | None, int]] = {}
        self._expired: dict[str, _Expired] = {}

    def change(self, logger: FilteringBoundLogger, *, requests: bool) -> None:
        """Write to another logger from now on."""
        self._log, self._requests = logger, requests

    def settled(self, request: Settled) -> None:
        if not self._requests:
            return
        # An answer that broke off after its head went out still bears the head's status.
        failed = request.status >= 500 or request.outcome == "broken"
        write = self._log.warning if failed else self._log.info
        write("request", **request_fields(request))

    def tokens_estimated(self, model: str, why: str) -> None:
        if self._first("estimated", model, why):
            self._log.info("prompt tokens are estimated from bytes", model=model, reason=why)

    def tokens_compared(self, model: str, ours: int, reported: int) -> None:
        if ours != reported and self._first("mismatch", model):
            self._log.warning(
                "our token count differs from the engine's: is its tokenizer or chat template another one? Cache "
                "matches of such prompts are wrong; logged once, counted in kvgate_token_count_mismatches_total",
                model=model,
                ours=ours,
                reported=reported,
            )

    def plugin_failed(self, kind: str, name: str, error: BaseException) -> None:
        now = self._clock.monotonic()
        said, unsaid = self._failed.get((kind, name), (None, 0))
        if said is not None and now - said < _REPEAT_AFTER:
            self._failed[kind, name] = (said, unsaid + 1)
            return
        self._failed[kind, name] = (now, 0)
        self._log.error("plugin failed", kind=kind, plugin=name, error=repr(error), not_logged=unsaid, exc_info=error)

    def score_refused(self, name: str) -> None:
        if self._first("score", name):
            self._log.warning(
                "a score was NaN or outside 0..1 and counts as 0; logged once, counted in kvgate_scores_refused_total",
                plugin=name,
            )

    def kv_gap(self, endpoint: str, result: str) -> None:
        self._log.warning("gap in the KV event stream", endpoint=endpoint, result=result)

    def kv_stream(self, endpoint: str, state: str) -> None:
        # Beside the requests' lines this tells which expected hits were made of less than the engine holds.
        write = self._log.warning if state == "partial" else self._log.info
        write("KV event stream", endpoint=endpoint, state=state)

    def kv_transfers(self, endpoint: str, expired: float, fetching: Mapping[str, int]) -> None:
        seen = self._expired.setdefault(endpoint, _Expired(expired))
        # A counter that fell has begun anew with its engine, which lost the KV itself: nothing was left to expire.
        seen.untold += max(0.0, expired - seen.counter)
        seen.counter = expired
        if not seen.untold:
            return
        now = self._clock.monotonic()
        if seen.told_at is not None and now - seen.told_at < _REPEAT_AFTER:
            return
        self._log.warning(
            "KV that was computed for another engine expired before that one fetched it: the decode engines are "
            "overloaded and fetch too late, or cannot reach this engine's side channel (set "
            "VLLM_NIXL_SIDE_CHANNEL_HOST on it to an address that they reach; its default is localhost)",
            endpoint=endpoint,
            expired=int(seen.untold),
        )
        seen.untold, seen.told_at = 0.0, now

    def endpoint_dropped(self, endpoint: str) -> None:
        self._expired.pop(endpoint, None)

    def _first(self, *what: str) -> bool:
        """Whether this is said for the first time. Bounded: models, reasons and plugins are configured."""
        if what in self._said:
            return False
        self._said.add(what)
        return True


def request_fields(request: Settled) -> dict[str, object]:
    """A request's line. Seconds to the microsecond; what does not apply is left out."""
    fields: dict[str, object] = {
        "request_id": request.request_id,
        "model": request.model,
        "route": request.route,
        "status": request.status,
        "outcome": request.outcome,
        "stream": request.stream,
        "endpoint": request.endpoint,
        "attempts": request.attempts,
        "prompt_tokens": request.prompt_tokens,
        "exact": request.exact,
        "expected_hit": request.expected_hit,
        "match": request.match_source,
        "cached_tokens": request.cached_tokens,
        "output_tokens": request.output_tokens,
        "ttft": _seconds(request.ttft),
        "duration": _seconds(request.duration),
        "queue_wait": _seconds(request.queue_wait),
        "overhead": _seconds(request.overhead),
        "plan": request.plan or None,
        "prefill_endpoint": request.prefill_endpoint,
        "prefill_time": _seconds(request.prefill_time),
        "slo": request.slo,
        "by_ids": request.by_ids or None,
        "fallback": request.fallback,
        "error": request.error,
    }
    if request.reported_prompt_tokens not in (None, request.prompt_tokens):
        fields["reported_prompt_tokens"] = request.reported_prompt_tokens
    if request.outcome != "ok":
        fields["phase"] = request.phase
    return {name: value for name, value in fields.items() if value is not None}


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
