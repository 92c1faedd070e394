"""A second filter of a gateway that only tells of answers (Envoy's ``observability_mode``).

It waits for nothing, and its end harms no client. What it tells is given to the answer of the request with the same
``x-request-id``, whose own call may be over by then.
"""

from __future__ import annotations

from typing import Protocol

from gateway.epp.answer import HeardAnswer
from gateway.epp.messages import ProcessingRequest


class Answers(Protocol):
    """Those of the door by which it came."""

    def find(self, request_id: str) -> HeardAnswer | None:
        """The answer to the request with this id, if that was routed and is not over."""

    def observe(self, request_id: str) -> None:
        """It will be told of: it must not end before that because its end is predicted."""

    def observed(self, request_id: str) -> None:
        """No more is told of it."""


class Observing:
    """One call of such a filter. Envoy does not say beforehand whether it tells of bodies, too: there is no
    ``protocol_config`` in its first message."""

    __slots__ = ("_answer", "_answers", "_bodies", "_id")

    def __init__(self, id: str, answers: Answers) -> None:
        self._id = id
        self._answers = answers
        answers.observe(id)
        self._bodies = False  # some have come
        self._answer: HeardAnswer | None = None

    def head(self, status: int, headers: list[tuple[str, str]], *, served: str, details: str) -> None:
        """The answer's headers."""
        answer = self._answer = self._answers.find(self._id)
        if answer is not None:
            answer.observed()
            answer.head(status, headers, served=served, details=details)

    def received(self, message: ProcessingRequest) -> None:
        """Any other message."""
        if self._answer is None:
            return
        if message.HasField("response_body"):
            self._bodies = True
            self._answer.part(message.response_body.body, last=message.response_body.end_of_stream)
        elif message.HasField("response_trailers"):
            self._end(self._answer)
            self._answer.trailers()

    def ended(self) -> None:
        """The call is over, and so is the answer."""
        self._answers.observed(self._id)
        answer = self._answer or self._answers.find(self._id)
        if answer is not None:
            self._end(answer)
            answer.closed()

    def left(self) -> None:
        """We stop, and hear no more; the answer goes on."""
        self._answers.observed(self._id)
        if self._answer is not None:
            self._answer.is_observed = False

    def _end(self, answer: HeardAnswer) -> None:
        if not self._bodies:
            answer.reads = False  # its end is told, and nothing of it
