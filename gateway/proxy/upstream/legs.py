"""What a leg is, how it can fail, and what a failure means. Pure: send.py sends legs, director.py and handover.py
act on failures.

The one rule behind the table: a leg may be sent again only while nothing of an answer is the client's, and a request
that may have killed an engine gets one more, not the fleet.

===============================================  =============================================================
what happened                                    then
===============================================  =============================================================
refused, or reset before anything was sent       another endpoint; free
the gateway has no room for another connection,  an error at once: no endpoint is to blame, none would do better
or for the whole answer
idle keep-alive connection died                  the same endpoint on a fresh connection, inside send.py; free.
                                                 If that one dies at once or unread, it is the same death, and counts
                                                 once; if it dies later, no further attempt
502, 503, 504, no head in time                   another endpoint; counts as an attempt
engine died after the body was sent, or says so  one more attempt in all: a request can be what kills an engine
prefill leg: 4xx, but 401, 403, 408 and 429      the client's, unchanged
prefill leg: no good answer, or an incomplete    the decode leg alone computes the prompt; free
decode leg older than its KV's lease             the same, without KV parameters
decode leg with KV parameters: 500; an error or  the same endpoint once more, without them; free
a break before its first output; none in time;
the prefill engine goes down while it fetches
any other answer of the engine                   the client's, unchanged
after commit                                     the stream ends with an error event; never a second engine
===============================================  =============================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway.errors import Exhausted, GatewayError, UpstreamError, UpstreamTimeout
from gateway.fleet.address import Address
from gateway.framework import Endpoint
from gateway.proxy.settings import RetrySettings

RETRY_STATUSES = frozenset({502, 503, 504})
"""An engine that is dead or full says 503 (vLLM's admission limits are made for that); what stands before it, 502 or
504."""

ENGINE_DEAD = b"EngineCore encountered an issue"
"""In what vLLM answers (status 500, or an error as a stream's first event) to all that was on an engine whose core
process has died; its server ends a moment later."""

BUDGET_RESERVE = 10.0
"""Retries that a model may spend before it has had many requests: a tenth of a few would be none."""


@dataclass(frozen=True, slots=True)
class Leg:
    """One upstream request: everything but the connection. ``path`` begins with a slash.

    ``head``, ``total``: seconds to the answer's head or first event and to its end, where they are fewer than for any
    other leg.
    """

    endpoint: Endpoint
    address: Address
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    head: float | None = None
    total: float | None = None


@dataclass(frozen=True, slots=True)
class DeferredError:
    """An engine's error response, kept while another endpoint is tried, and returned if all fail."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class Cause(StrEnum):
    """Why a leg has no answer that may be the client's; the value is a metric's label."""

    EXHAUSTED = "exhausted"
    FULL = "full"
    REFUSED = "refused"
    CONNECT_TIMEOUT = "connect-timeout"
    RESET_UNSENT = "reset-unsent"
    DIED = "died"
    ENGINE_DEAD = "engine-dead"
    GARBAGE = "garbage"
    HEAD_TIMEOUT = "head-timeout"
    IDLE_TIMEOUT = "idle-timeout"
    TOTAL_TIMEOUT = "total-timeout"
    STATUS = "status"

    @property
    def sent(self) -> bool:
        """The engine may have seen the request."""
        return self not in (Cause.EXHAUSTED, Cause.REFUSED, Cause.CONNECT_TIMEOUT, Cause.RESET_UNSENT)

    @property
    def killed(self) -> bool:
        """The request may be what broke the engine."""
        return self in (Cause.DIED, Cause.ENGINE_DEAD, Cause.GARBAGE)


class LegFailed(Exception):
    """A leg that failed before commit, or an answer that broke after it. ``detail`` holds no credentials.

    ``held``: what the engine answered, where it did. ``announced``: a stream that broke off had begun, without output.
    ``deaths``: how often the engine may have died of the request. ``waited``: seconds after which it was not waited for
    any longer, where that is what ended it.
    """

    def __init__(self, cause: Cause, endpoint: Endpoint, detail: str, held: DeferredError | None = None) -> None:
        super().__init__(f"{endpoint.name}: {cause}: {detail}")
        self.cause = cause
        self.endpoint = endpoint
        self.detail = detail
        self.held = held
        self.announced = False
        self.deaths = int(cause.killed)
        self.waited: float | None = None

    @property
    def result(self) -> str:
        """The word for it in metrics."""
        return f"status-{self.held.status}" if self.cause is Cause.STATUS and self.held else str(self.cause)

    def error(self) -> GatewayError:
        """What the client is told when no attempt is left. The engine's address is not the client's business."""
        if self.cause is Cause.EXHAUSTED:
            return Exhausted(
                "The gateway has no room for another connection; its log names what it lacks.", retry_after=1
            )
        if self.cause is Cause.FULL:
            return Exhausted("The gateway holds as many bytes of answers as it may (listen.max_held).", retry_after=5)
        if self.cause in (Cause.HEAD_TIMEOUT, Cause.IDLE_TIMEOUT, Cause.TOTAL_TIMEOUT, Cause.CONNECT_TIMEOUT):
            return UpstreamTimeout(f"the engine gave no answer in time ({self.cause})")
        return UpstreamError(f"the engine failed before it answered ({self.cause})")


class RetryBudget:
    """Of a model's requests, the fraction that may be sent again, so that a sick fleet is not hammered."""

    def __init__(self, fraction: float) -> None:
        self._fraction = fraction
        self._tokens = BUDGET_RESERVE if fraction > 0 else 0.0

    def deposit(self) -> None:
        """Once for each request of the model."""
        self._tokens = min(BUDGET_RESERVE, self._tokens + self._fraction)

    def withdraw(self) -> bool:
        """Take one retry out; false if there is none."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class Retries:
    """The legs of one request so far: says whether there may be another."""

    def __init__(self, settings: RetrySettings, budget: RetryBudget) -> None:
        self._settings = settings
        self._budget = budget
        self._deaths = 0
        self.sent = 0
        self.failed_on: set[int] = set()
        """Slots that failed this request: they are no candidates again."""

    def cured(self, failure: LegFailed) -> None:
        """Book a failure that the request survives on the decode endpoint it has: one death in all may be cured."""
        self._deaths += failure.deaths

    def may_try_another(self, failure: LegFailed) -> bool:
        """Book ``failure``; true if the request may be placed again, on an endpoint not in ``failed_on``."""
        self.failed_on.add(failure.endpoint.slot)
        if failure.cause in (Cause.EXHAUSTED, Cause.FULL):
            return False
        if not failure.cause.sent:
            return True
        self.sent += 1
        if failure.cause.killed:
            # Not from the budget: when an engine dies under load, all that was on it comes at once, and each request
            # may do so only once. Health takes such an engine out, so that it is no load that could go on.
            self._deaths += failure.deaths
            return self._deaths == 1 and self.sent < self._settings.attempts
        if failure.cause in (Cause.IDLE_TIMEOUT, Cause.TOTAL_TIMEOUT):
            return False  # the client's patience is spent: a second answer would come later still
        if self.sent >= self._settings.attempts:
            return False
        return self._budget.withdraw()
