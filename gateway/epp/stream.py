"""One gRPC call of ``ExternalProcessor/Process``, as who answers it sees it.

All of it is synchronous: a message is handled, and usually answered, within the call in which the event loop reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.epp.messages import ProcessingRequest, ProcessingResponse


class Stream(Protocol):
    """The sending half of a call. Nothing here raises, and what is said after the call's end is dropped."""

    def send(self, message: ProcessingResponse) -> None:
        """Send ``message`` as soon as the peer's windows have room."""

    def end(self, status: int = 0, message: str = "") -> None:
        """End the call after what was sent: ``status`` is a gRPC status code, ``message`` its text. Idempotent. What
        still comes of the call is dropped, and its handler is not called any more."""

    @property
    def waiting(self) -> int:
        """Bytes that were sent and that the peer's windows have not taken yet."""


class Handler(Protocol):
    """The receiving half of a call. Must not raise: the call ends with INTERNAL then, and the error is logged."""

    def received(self, message: ProcessingRequest) -> None:
        """The next message; called within the event loop's read."""

    def half_closed(self) -> None:
        """The client sends no more; it still takes answers, until ``Stream.end``."""

    def gone(self, how: str) -> None:
        """The call is over, and nothing can be sent. ``how``: ``reset N`` with the HTTP/2 error code of the peer's
        RST_STREAM; ``connection lost``; ``drained``: the listener's drain has ended it, properly; ``refused``: what the
        peer sent broke a limit or the protocol. Called at most once, and not after ``Stream.end``."""


Open = Callable[[Stream], Handler]
"""Called for each new call, within the event loop's read."""
