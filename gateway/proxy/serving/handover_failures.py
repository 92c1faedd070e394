"""How a hand-over can fail, and what that means: the table ``HANDOVER_RULES``, one row for each cause.

What follows is the same for all of them, and the plan and its connector decide it (``Handover.commit``): the decode
endpoint computes the prompt itself; with a strict plan the client gets the error; with a connector whose engines serve
nothing alone, the attempt has failed by the rules of legs. Only deaths are charged, as ``upstream.legs.RULES`` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from gateway.errors import GatewayError, UpstreamError, UpstreamTimeout
from gateway.proxy.upstream.legs import RULES, Cause, LegFailed

NOT_THE_CLIENTS = frozenset({401, 403, 408, 429})
"""A prefill engine's refusals that are not the client's doing: its key is the gateway's, and so is its load. Its other
4xx are the client's, unchanged."""


class HandoverCause(StrEnum):
    """Why the KV does not get from one engine to the other, unless the prefill leg failed (``of_prefill``). The
    value is a metric's label."""

    PREFILL_STATUS = "prefill-status"
    PREFILL_MALFORMED = "prefill-malformed"
    PREFILL_INCOMPLETE = "prefill-incomplete"
    PREFILL_DOWN = "prefill-down"
    EXPIRED = "expired"
    BOOTSTRAP = "bootstrap"
    THINKING = "thinking"
    DECODE_STUCK = "decode-stuck"
    DECODE_ERROR = "decode-error"


class HandoverRule(NamedTuple):
    """``happened``: the cause in words. ``error``: what the client gets of a strict plan."""

    happened: str
    error: type[GatewayError] = UpstreamError


def of_prefill(cause: Cause) -> str:
    """The cause where the prefill leg failed; like a ``HandoverCause``."""
    return f"prefill-{cause}"


def of_decode(failure: LegFailed, *, stream: bool) -> HandoverCause | None:
    """The decode leg failed while it used the KV. None: not by the hand-over, so that ``upstream.legs.RULES`` decide.

    ``stream``: of a stream the first output shows that the KV came; an unstreamed answer comes with its last token.
    """
    if stream and failure.cause in (Cause.HEAD_TIMEOUT, Cause.IDLE_TIMEOUT):
        return HandoverCause.DECODE_STUCK
    return HandoverCause.DECODE_ERROR if failure.announced else None


def _of_leg(cause: Cause) -> HandoverRule:
    late = issubclass(RULES[cause].said.error, UpstreamTimeout)
    return HandoverRule(f"the prefill leg: {RULES[cause].happened}", UpstreamTimeout if late else UpstreamError)


HANDOVER_RULES: Mapping[str, HandoverRule] = {
    **{of_prefill(cause): _of_leg(cause) for cause in Cause},
    # In place of the row of ``of_prefill(Cause.STATUS)``, which is the same word: that leg is any status but 200 and
    # the client's own 4xx, not only those that mean "try another endpoint".
    HandoverCause.PREFILL_STATUS: HandoverRule(
        "the prefill engine answered neither 200 nor a 4xx of the client's (401, 403, 408 and 429 are not)"
    ),
    HandoverCause.PREFILL_MALFORMED: HandoverRule("the prefill engine's answer is not the expected JSON"),
    HandoverCause.PREFILL_INCOMPLETE: HandoverRule("the prefill engine's answer lacks what the decode engine needs"),
    HandoverCause.PREFILL_DOWN: HandoverRule("the prefill engine is down, and its KV is not fetched yet"),
    HandoverCause.EXPIRED: HandoverRule("the KV's lease ended before the decode leg was sent"),
    HandoverCause.BOOTSTRAP: HandoverRule("the prefill engine's bootstrap server gave no answer, or not this rank"),
    HandoverCause.THINKING: HandoverRule("the body cannot be cut to one token: a message with thinking"),
    HandoverCause.DECODE_STUCK: HandoverRule("a stream's decode leg had no output in time", UpstreamTimeout),
    HandoverCause.DECODE_ERROR: HandoverRule(
        "the decode engine answered 500 or an error, or broke off before its first output"
    ),
}


class HandoverFailed(Exception):
    """The KV does not get from one engine to the other. ``cause``: a key of ``HANDOVER_RULES``. ``detail``: for the
    log."""

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(f"{cause}: {detail}" if detail else str(cause))
        self.cause = cause
        self.detail = detail

    def error(self) -> GatewayError:
        """What the client of a strict plan is told."""
        error = HANDOVER_RULES[self.cause].error
        return error(f"the hand-over between the prefill and the decode engine failed ({self.cause})")
