"""A second filter of a gateway that only tells of answers (Envoy's ``observability_mode``).

It waits for nothing, and its end harms no client. What it tells is given to the answer of the request with the same
``x-request-id``, whose own call may be over by then.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.epp.answer import HeardAnswer
from gateway.epp.messages import ProcessingRequest

Find = Callable[[str], HeardAnswer | None]
"""The answer to the request with this id, if that was routed and is not over."""


class Observing:
    """One call of such a filter. ``bodies``: it tells of bodies, too."""

    __slots__ = ("_answer", "_bodies", "_find", "_id")

    def __init__(self, id: str, find: Find, *, bodies: bool) -> None:
        self._id = id
        self._find = find
        self._bodies = bodies
        self._answer: HeardAnswer | None = None

    def head(self, status: int, headers: list[tuple[str, str]], *, served: str, details: str) -> None:
        """The answer's headers."""
        answer = self._answer = self._find(self._id)
        if answer is not None:
            answer.observed(bodies=self._bodies)
            answer.head(status, headers, served=served, details=details)

    def received(self, message: ProcessingRequest) -> None:
        """Any other message."""
        if self._answer is None:
            return
        if message.HasField("response_body"):
            self._answer.part(message.response_body.body, last=message.response_body.end_of_stream)
        elif message.HasField("response_trailers"):
            self._answer.trailers()

    def ended(self) -> None:
        """The call is over, and so is the answer."""
        if self._answer is not None:
            self._answer.closed()
