"""The door by which gateways come: it makes a ``PickerCall`` of each call, and knows who sends its request.

It is to the picker what ``proxy.http.server`` is to the proxy.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random

from gateway.api.routes import Route
from gateway.core.clock import SystemClock
from gateway.core.log_limit import LogLimit
from gateway.core.tasks import TaskSet
from gateway.epp.answer import HeardAnswer
from gateway.epp.call import PickerCall
from gateway.epp.client import CallClient
from gateway.epp.picker import Picker
from gateway.epp.stream import Stream
from gateway.errors import GatewayError
from gateway.proxy.serving.model_directory import ModelDirectory
from gateway.proxy.serving.stages import Stages
from gateway.tenants.directory import Directory
from gateway.tenants.sender import caller_of

log = logging.getLogger("kvgate.picker")

AFTER_CUT = 1.0
"""Seconds for requests that were cut to give everything back: it takes some turns of the loop."""


class PickerDoor:
    """``tenants``: finds who sends a request. ``stages``: of the loop. ``leaving``: it is to be asked no more."""

    def __init__(self, picker: Picker, directory: ModelDirectory, tenants: Directory, stages: Stages) -> None:
        self.use(picker, directory)
        self.stages = stages
        self.tasks = TaskSet()
        self.often = LogLimit(SystemClock())
        self.leaving = self._red = False
        self._tenants = tenants
        self._observed: set[str] = set()
        self._calls: dict[PickerCall, None] = {}
        self._answers: dict[str, HeardAnswer] = {}
        self._empty = asyncio.Event()
        self._chance = random.Random(os.urandom(32))

    def use(self, picker: Picker, directory: ModelDirectory) -> None:
        """Use these from the next request on."""
        self.picker = picker
        self._directory = directory

    def open(self, stream: Stream) -> PickerCall:
        """``stream.Open``."""
        call = PickerCall(self, stream)
        self._calls[call] = None
        return call

    def routed(self, request_id: str, answer: HeardAnswer) -> None:
        if request_id:
            self._answers[request_id] = answer
            answer.is_observed = request_id in self._observed

    def observe(self, request_id: str) -> None:
        self._observed.add(request_id)

    def observed(self, request_id: str) -> None:
        self._observed.discard(request_id)

    def find(self, request_id: str) -> HeardAnswer | None:
        return self._answers.get(request_id)

    def gone(self, call: PickerCall) -> None:
        if call.client is not None and call.answer is not None:
            id = call.client.header("x-request-id")
            if self._answers.get(id) is call.answer:  # another request may have the same
                del self._answers[id]
        self._calls.pop(call, None)
        if not self._calls:
            self._empty.set()

    @property
    def ready(self) -> bool:
        """Whether gateways should ask here: some model can be served, and it does not stop."""
        return not self._red and any(report["ready"] for report in self._directory.readiness().values())

    def make_id(self) -> str:
        return f"{self._chance.getrandbits(128):032x}"

    def admit(self, client: CallClient, route: Route | None, assigned_id: str) -> None:
        tenants = self._tenants
        if tenants.plain:
            client.caller = tenants.anyone
            return
        try:
            client.caller = caller_of(client.fields, tenants)
        except GatewayError as error:
            if route is not None:
                self.picker.refused(route, assigned_id, error)
            raise
        if header := tenants.roster.header:
            client.headers = [one for one in client.headers if one[0] != header]

    def leave(self) -> None:
        """Gateways should ask elsewhere from now on; those that ask all the same are answered."""
        self._red = True

    async def drain(self, seconds: float) -> bool:
        """End all calls: each when its request is answered, or when the answer that passes through it has ended. True
        if that took at most so many seconds; what is left then is cut, and such an answer may lack a part. What is
        booked for answers that go on is given back."""
        self.leave()
        self.leaving = True
        self._empty.clear()
        for call in list(self._calls):
            call.leave()
        try:
            async with asyncio.timeout(seconds):
                if self._calls:
                    await self._empty.wait()
        except TimeoutError:
            log.warning("%d calls of gateways did not end within %g s and were cut", len(self._calls), seconds)
            for call in list(self._calls):
                call.cut()
            await self.tasks.wait(AFTER_CUT)
            return False
        return True

    async def close(self) -> None:
        """Cancel what is left."""
        await self.tasks.close()
