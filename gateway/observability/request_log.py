"""The log's observer: a line for each request, and warnings that an operator should read once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from gateway.core.log_limit import PERIOD, LogLimit
from gateway.core.observer import Observer, Settled
from gateway.framework import Clock
from gateway.observability.line_composer import PlainValue
from gateway.observability.logs import Logs

# Lines a minute for one endpoint's KV event stream: a restart of its engine makes three or four, all of them useful.
_STREAM_LINES = 10


@dataclass(slots=True)
class _Expired:
    """An endpoint's expired leases. ``counter``: the engine's, as last scraped. ``unlogged``: not yet in a line.
    ``logged_at``: when the last line was."""

    counter: float
    unlogged: float = 0.0
    logged_at: float | None = None


class RequestLog(Observer):
    """Writes to ``logs``. ``requests``: whether there is a line for each request."""

    def __init__(self, logs: Logs, clock: Clock, *, requests: bool = True) -> None:
        self._logs = logs
        self._clock = clock
        self._requests = requests
        self._logged_once: set[tuple[str, ...]] = set()
        self._often = LogLimit(clock)
        self._streams = LogLimit(clock, most=_STREAM_LINES)
        self._expired: dict[str, _Expired] = {}

    def change(self, *, requests: bool) -> None:
        """Change whether there is a line for each request."""
        self._requests = requests

    def settled(self, request: Settled) -> None:
        # An answer that broke off after its head was sent still has the head's status.
        failed = request.status >= 500 or request.outcome == "broken"
        level = logging.WARNING if failed else logging.INFO
        logs = self._logs
        if self._requests and level >= logs.level:
            if logs.composer is not None:
                made = partial(logs.composer.line, level, "request", self._clock.wall(), request_fields, request)
                logs.writer.write(made)
            else:
                logs.logger.log(level, "request", **request_fields(request))
        if request.counted is not None and request.counted != request.reported_prompt_tokens:
            self._mismatch(request)

    def _mismatch(self, request: Settled) -> None:
        if self._first("mismatch", request.model):
            self._logs.logger.warning(
                "our token count differs from the engine's: is its tokenizer or chat template another one? Cache "
                "matches of such prompts are wrong; logged once, counted in kvgate_token_count_mismatches_total",
                model=request.model,
                ours=request.counted,
                reported=request.reported_prompt_tokens,
            )

    def tokens_estimated(self, model: str, why: str) -> None:
        if self._first("estimated", model, why):
            self._logs.logger.info("prompt tokens are estimated from bytes", model=model, reason=why)

    def plugin_failed(self, kind: str, name: str, error: BaseException) -> None:
        # A plugin that fails does so on every request.
        if (left_out := self._often.admit("plugin", kind, name)) is not None:
            self._logs.logger.error(
                "plugin failed", kind=kind, plugin=name, error=repr(error), not_logged=left_out, exc_info=error
            )

    def score_refused(self, name: str) -> None:
        if self._first("score", name):
            self._logs.logger.warning(
                "a score was NaN or outside 0..1 and counts as 0; logged once, counted in kvgate_scores_refused_total",
                plugin=name,
            )

    def kv_gap(self, endpoint: str, result: str) -> None:
        if (left_out := self._often.admit("gap", endpoint, result)) is not None:
            self._logs.logger.warning(
                "gap in the KV event stream", endpoint=endpoint, result=result, not_logged=left_out
            )

    def kv_stream(self, endpoint: str, state: str) -> None:
        # It explains expected hits in request lines that are lower than what the engine holds.
        if (left_out := self._streams.admit(endpoint)) is None:
            return
        write = self._logs.logger.warning if state == "partial" else self._logs.logger.info
        write("KV event stream", endpoint=endpoint, state=state, not_logged=left_out)

    def kv_transfers(self, endpoint: str, expired: float, fetching: Mapping[str, int]) -> None:
        seen = self._expired.setdefault(endpoint, _Expired(expired))
        # A counter that fell belongs to a new process: the old one's KV is gone, and none of it expired.
        seen.unlogged += max(0.0, expired - seen.counter)
        seen.counter = expired
        if not seen.unlogged:
            return
        now = self._clock.monotonic()
        if seen.logged_at is not None and now - seen.logged_at < PERIOD:
            return
        self._logs.logger.warning(
            "KV that was computed for another engine expired before that one fetched it: the decode engines are "
            "overloaded and fetch too late, or cannot reach this engine's side channel (set "
            "VLLM_NIXL_SIDE_CHANNEL_HOST on it to an address that they reach; its default is localhost)",
            endpoint=endpoint,
            expired=int(seen.unlogged),
        )
        seen.unlogged, seen.logged_at = 0.0, now

    def endpoint_dropped(self, endpoint: str) -> None:
        self._expired.pop(endpoint, None)

    def _first(self, *what: str) -> bool:
        """Whether this is logged for the first time. Bounded: models, reasons and plugins are configured."""
        if what in self._logged_once:
            return False
        self._logged_once.add(what)
        return True


def request_fields(request: Settled) -> dict[str, PlainValue]:
    """The fields of a request's line. Seconds to the microsecond; fields that do not apply are left out."""
    fields: dict[str, PlainValue] = {
        "request_id": request.request_id,
        "model": request.model,
        "route": request.route,
        "status": request.status,
        "outcome": request.outcome,
        "stream": request.stream,
    }
    if request.tenant:
        fields["tenant"] = request.tenant
    if request.key:
        fields["key_id"] = request.key
    if request.endpoint is not None:
        fields["endpoint"] = request.endpoint
    fields["attempts"] = request.attempts
    fields["prompt_tokens"] = request.prompt_tokens
    fields["exact"] = request.exact
    fields["expected_hit"] = request.expected_hit
    fields["match"] = request.match_source
    if request.cached_tokens is not None:
        fields["cached_tokens"] = request.cached_tokens
    if request.output_tokens is not None:
        fields["output_tokens"] = request.output_tokens
    if request.ttft is not None:
        fields["ttft"] = round(request.ttft, 6)
    fields["duration"] = round(request.duration, 6)
    fields["queue_wait"] = round(request.queue_wait, 6)
    fields["overhead"] = round(request.overhead, 6)
    if request.plan:
        fields["plan"] = request.plan
    if request.prefill_endpoint is not None:
        fields["prefill_endpoint"] = request.prefill_endpoint
    if request.prefill_time is not None:
        fields["prefill_time"] = round(request.prefill_time, 6)
    if request.slo is not None:
        fields["slo"] = request.slo
    if request.by_ids:
        fields["by_ids"] = True
    if request.fallback is not None:
        fields["fallback"] = request.fallback
    if request.error is not None:
        fields["error"] = request.error
    if request.reported_prompt_tokens is not None and request.reported_prompt_tokens != request.prompt_tokens:
        fields["reported_prompt_tokens"] = request.reported_prompt_tokens
    if request.outcome != "ok":
        fields["phase"] = request.phase
    return fields
