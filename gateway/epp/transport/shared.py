"""What all connections of a server have together."""

from __future__ import annotations

import logging

from gateway.core.log_limit import LogLimit, left_out
from gateway.epp.transport.call import Methods
from gateway.epp.transport.frames import ConnectionFault, StreamFault
from gateway.epp.transport.limits import Limits, Tally
from gateway.framework import Clock

log = logging.getLogger("kvgate.epp")


class Shared:
    """``ending``: calls that still come are ended at once, properly."""

    def __init__(self, methods: Methods, limits: Limits, clock: Clock) -> None:
        self.methods = methods
        self.limits = limits
        self.incomplete = Tally(limits.incomplete)
        self.waiting = Tally(limits.waiting)
        self.ending = False
        self._lines = LogLimit(clock)

    def report(self, fault: ConnectionFault | StreamFault) -> None:
        """Log what a peer did wrong."""
        what = "call" if isinstance(fault, StreamFault) else "connection"
        if (more := self._lines.admit(what, fault.code.name)) is not None:
            log.warning("a gateway's %s is ended with %s: %s%s", what, fault.code.name, fault, left_out(more))
