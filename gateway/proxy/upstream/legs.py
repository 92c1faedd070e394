"""What a leg is, how it can fail, and what a failure means: the table ``RULES``, one row for each ``Cause``.

Pure: send.py, answer.py, deadlines.py, commit.py and serving/transfer_legs.py find the cause; director.py, handover.py
and forward.py act on its row. A new rule is a new ``Cause`` with its row; ARCHITECTURE.md prints the table, and the
tests compare the two.

A leg may be sent again only while no byte of an answer has gone to the client. A request that may have killed an engine
is sent once more, and not to one engine after the other. A kept connection that died idle is no failure: send.py
replaces it. How a hand-over between two legs can fail is in ``serving/handover_failures.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from gateway.errors import Exhausted, GatewayError, UpstreamError, UpstreamTimeout
from gateway.fleet.address import Address
from gateway.framework import Endpoint
from gateway.proxy.settings import RetrySettings

RETRY_STATUSES = frozenset({502, 503, 504})
"""Answers that mean "try another endpoint": ``Cause.STATUS``. An engine that is dead or full answers 503 (vLLM's
admission limits do so); a proxy in front of it, 502 or 504."""

ENGINE_DEAD = b"EngineCore encountered an issue"
"""A part of vLLM's answer (status 500, or an error as a stream's first event) to each request on an engine whose core
process has died. Its server ends a moment later."""

BUDGET_RESERVE = 10.0
"""Retries. A model's budget begins with them and never holds more: a tenth of its first few requests would be none."""


class Leg(msgspec.Struct, frozen=True):
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


class DeferredError(msgspec.Struct, frozen=True):
    """An engine's error response, kept until another endpoint answers. The client gets it if no endpoint is left, or if
    its failure is the request's last."""

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
        return RULES[self].seen


class NextStep(StrEnum):
    """What follows a failed leg."""

    ANOTHER = "another endpoint"
    ERROR = "the error"


class Cost(StrEnum):
    """What another leg costs the request. Where it cannot pay, the error follows.

    An attempt is one of ``retries.attempts``. The budget is the model's (``RetryBudget``). A request has one death.
    """

    NOTHING = "nothing"
    ATTEMPT = "an attempt, and one of the budget"
    DEATH = "an attempt, and a death"


class HealthReport(StrEnum):
    """What is reported to the fleet of the leg's engine."""

    NOTHING = "nothing"
    OURS = "nothing; the log names what is lacking"
    REFUSED = "it takes no connection"
    BROKEN = "it broke off"


class ClientMessage(NamedTuple):
    """The error that the client gets. ``message`` may hold ``{cause}``. ``retry_after``: seconds, or None."""

    error: type[GatewayError]
    message: str
    retry_after: float | None = None


FAILED = ClientMessage(UpstreamError, "the engine failed before it answered ({cause})")
LATE = ClientMessage(UpstreamTimeout, "the engine gave no answer in time ({cause})")
NO_CONNECTION = ClientMessage(
    Exhausted, "The gateway has no room for another connection; its log names what it lacks.", retry_after=1
)
NO_ROOM = ClientMessage(
    Exhausted, "The gateway holds as many bytes of answers as it may (listen.max_held).", retry_after=5
)


class Rule(NamedTuple):
    """What one cause means.

    ``happened``: the cause in words. ``seen``: the engine may have seen the request. ``said``: what the client gets
    where no other leg follows; an engine's own answer (``LegFailed.held``) takes its place.
    """

    happened: str
    then: NextStep
    cost: Cost
    seen: bool
    said: ClientMessage
    health: HealthReport


*_OTHERS, _LAST = map(str, sorted(RETRY_STATUSES))
_ONE_OF_THEM = f"{', '.join(_OTHERS)} or {_LAST}"

RULES: Mapping[Cause, Rule] = {
    # The gateway's own limits: no endpoint is to blame, and none would do better.
    Cause.EXHAUSTED: Rule(
        "the gateway has no descriptor, port or memory for a connection",
        *(NextStep.ERROR, Cost.NOTHING, False, NO_CONNECTION, HealthReport.OURS),
    ),
    Cause.FULL: Rule(
        "the gateway has no room for the whole answer",
        *(NextStep.ERROR, Cost.NOTHING, True, NO_ROOM, HealthReport.NOTHING),
    ),
    # Nothing was sent: it costs nothing.
    Cause.REFUSED: Rule(
        "no connection was made",
        *(NextStep.ANOTHER, Cost.NOTHING, False, FAILED, HealthReport.REFUSED),
    ),
    Cause.CONNECT_TIMEOUT: Rule(
        "no connection was made in time",
        *(NextStep.ANOTHER, Cost.NOTHING, False, LATE, HealthReport.REFUSED),
    ),
    Cause.RESET_UNSENT: Rule(
        "the connection ended before anything was sent",
        *(NextStep.ANOTHER, Cost.NOTHING, False, FAILED, HealthReport.BROKEN),
    ),
    # The request may be what killed the engine.
    Cause.DIED: Rule(
        "the connection broke after the request was sent",
        *(NextStep.ANOTHER, Cost.DEATH, True, FAILED, HealthReport.BROKEN),
    ),
    Cause.ENGINE_DEAD: Rule(
        "the engine answered that its core is dead",
        *(NextStep.ANOTHER, Cost.DEATH, True, FAILED, HealthReport.BROKEN),
    ),
    Cause.GARBAGE: Rule(
        "the answer is not HTTP, or a stream without an event, or too long",
        *(NextStep.ANOTHER, Cost.DEATH, True, FAILED, HealthReport.BROKEN),
    ),
    # The engine is slow or full.
    Cause.HEAD_TIMEOUT: Rule(
        "neither the head nor the first event came in time",
        *(NextStep.ANOTHER, Cost.ATTEMPT, True, LATE, HealthReport.BROKEN),
    ),
    Cause.STATUS: Rule(
        f"the engine answered {_ONE_OF_THEM}",
        *(NextStep.ANOTHER, Cost.ATTEMPT, True, FAILED, HealthReport.NOTHING),
    ),
    # The client's patience is spent: a second answer would come later still.
    Cause.IDLE_TIMEOUT: Rule(
        "the answer began, and nothing more came in time",
        *(NextStep.ERROR, Cost.NOTHING, True, LATE, HealthReport.BROKEN),
    ),
    Cause.TOTAL_TIMEOUT: Rule(
        "the whole answer did not come in time",
        *(NextStep.ERROR, Cost.NOTHING, True, LATE, HealthReport.BROKEN),
    ),
}
"""What each cause means before commit. After commit every failure ends the stream: its last event is the error."""


class LegFailed(Exception):
    """A leg that failed before commit, or an answer that broke after it. ``detail`` holds no credentials.

    ``held``: the engine's answer, if there was one: the client gets it instead of our error. ``announced``: a stream
    had begun, without output, before it broke off. ``deaths``: how often an engine may have died of the request.
    ``waited``: seconds that the gateway had waited, if a timeout ended the leg.
    """

    def __init__(self, cause: Cause, endpoint: Endpoint, detail: str, held: DeferredError | None = None) -> None:
        super().__init__(f"{endpoint.name}: {cause}: {detail}")
        self.cause = cause
        self.endpoint = endpoint
        self.detail = detail
        self.held = held
        self.announced = False
        self.deaths = int(self.rule.cost is Cost.DEATH)
        self.waited: float | None = None

    @property
    def result(self) -> str:
        """The ``result`` label in metrics."""
        return f"status-{self.held.status}" if self.cause is Cause.STATUS and self.held else str(self.cause)

    @property
    def rule(self) -> Rule:
        return RULES[self.cause]

    def error(self) -> GatewayError:
        """What the client is told when no attempt is left. The engine's address is not the client's business."""
        error, message, retry_after = self.rule.said
        return error(message.format(cause=self.cause), retry_after=retry_after)


class RetryBudget:
    """The fraction of a model's requests that may be sent again, so that retries do not overload an unhealthy fleet."""

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


class Retries(msgspec.Struct, eq=False):
    """Counts the failed attempts of one request, and decides whether there may be another.

    ``sent``: attempts that failed and cost one. ``failed_on``: slots of the endpoints that failed this request;
    they are no candidates again. ``deaths``: how often an engine may have died of it.
    """

    settings: RetrySettings
    budget: RetryBudget
    deaths: int = 0
    sent: int = 0
    failed_on: set[int] = msgspec.field(default_factory=set)

    @property
    def seen(self) -> bool:
        """An engine may have seen the request."""
        return bool(self.sent or self.deaths)

    def count_deaths(self, failure: LegFailed) -> None:
        """Count the deaths of a failure that costs no attempt, since the decode endpoint computes the prompt itself: a
        request has one in all."""
        self.deaths += failure.deaths

    def charge(self, failure: LegFailed) -> bool:
        """Count ``failure`` and take what it costs. True if the request may be placed again, on an endpoint not in
        ``failed_on``."""
        self.failed_on.add(failure.endpoint.slot)
        rule = failure.rule
        if rule.then is NextStep.ERROR:
            return False
        if rule.cost is Cost.NOTHING:
            return True
        self.sent += 1
        if rule.cost is Cost.DEATH:
            # Not from the budget: when an engine dies under load, all of its requests are retried at once, each only
            # once. Health ejects the engine, so these retries cannot go on.
            self.deaths += failure.deaths
            return self.deaths == 1 and self.sent < self.settings.attempts
        return self.sent < self.settings.attempts and self.budget.withdraw()
