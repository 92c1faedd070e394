"""What a peer may do, how much of it, and how often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.epp.transport.frames import ConnectionFault, ErrorCode

MB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """The defaults are many times what a gateway does, and little enough that who does more harms nobody else.

    ``streams``: calls at a time on a connection. In Envoy's modes that hear the answer a call is as long as its stream;
    Envoy opens another connection for more. ``message``: bytes of one message; BUFFERED sends a whole body in one.
    ``head``: bytes of a call's headers, compressed and not: Envoy's have 200 to 1,000. ``incomplete``: bytes of
    messages that have begun to come, on all connections; one may hold half of them. ``waiting``: bytes for all peers
    that they have not taken.

    ``stream_window``, ``connection_window``: bytes that may be on their way. Messages are handled as they come, so
    these only have to be more than what a connection carries in a round trip. ``buffer``: bytes written to a socket
    that the system has not taken; above it, nothing is read from that peer until it reads.

    ``silence``: seconds for a connection to say that it is HTTP/2. ``stall``: seconds in which a peer must take some of
    what waits for it, and send some of a message that it has begun: Envoy takes nothing of a body while it connects to
    the engine. ``linger``: seconds for a peer to
    read the reason why its connection ends. ``look``: seconds between two looks at what takes too long.

    Rates are of a second, and ten times as many may come at once. ``settings``: each goes through all streams.
    ``resets``: calls that end in RST_STREAM before they are answered, whoever sends it: each is 0.1 ms of work, so
    these are a tenth of a core; a gateway resets calls whose message timeout is over. ``idle_frames``: PING, PRIORITY,
    empty DATA, what is of an unknown type.
    """

    streams: int = 10_000
    message: int = 64 * MB
    head: int = 32_768
    incomplete: int = 256 * MB
    waiting: int = 1024 * MB
    stream_window: int = MB
    connection_window: int = 16 * MB
    buffer: int = 256 * 1024
    silence: float = 10.0
    stall: float = 60.0
    linger: float = 2.0
    look: float = 5.0
    settings: float = 10.0
    resets: float = 1_000.0
    idle_frames: float = 1_000.0

    @classmethod
    def for_bodies(cls, largest: int) -> Limits:
        """Where bodies of up to ``largest`` bytes are taken: a message may be larger, so that a body that is too large
        comes to whoever says so to its client."""
        message = max(cls().message, 2 * largest)
        return cls(message=message, incomplete=max(cls().incomplete, 4 * message))


class Tally:
    """Bytes that all connections hold together, and how many they may."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.held = 0
        self.limit = limit


class Share:
    """What one connection holds of a tally: half of it at most, so that no other is kept from working by it alone."""

    __slots__ = ("_of", "held")

    def __init__(self, of: Tally) -> None:
        self._of = of
        self.held = 0

    def add(self, size: int) -> None:
        """``size`` is below 0 for what is given back."""
        self.held += size
        self._of.held += size

    @property
    def exceeded(self) -> bool:
        """Whether this connection, or all of them, hold too much."""
        return self.held > self._of.limit // 2 or self._of.held > self._of.limit


BURST = 10.0
"""Seconds' worth of a rate that may come at once."""


class Rate:
    """How often a peer may do something."""

    __slots__ = ("_filled_at", "_left", "_now", "_per_second", "_what")

    def __init__(self, what: str, per_second: float, now: Callable[[], float]) -> None:
        """``per_second``: how often in the long run."""
        self._what = what
        self._per_second = per_second
        self._now = now
        self._left = per_second * BURST
        self._filled_at = now()

    def hit(self) -> None:
        """It has done it once more. Raises ConnectionFault where that is too often."""
        self._left -= 1
        if self._left < 0:
            now = self._now()
            refilled = self._left + 1 + (now - self._filled_at) * self._per_second
            self._left = min(refilled, self._per_second * BURST) - 1
            self._filled_at = now
            if self._left < 0:
                raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"too many {self._what}")
