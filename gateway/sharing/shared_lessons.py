"""What the answers of one worker teach, told to all workers of its host: all of it, or, of busy workers, a sample.

A lesson takes the loop about 15 us. If each worker learned all that every other one learns, the CPU of an answer would
grow with the number of workers; and a fit follows its engines with some lessons a second of each.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from math import isfinite
from random import Random

import msgspec

from gateway.fleet.load.cost import FittedCost
from gateway.fleet.load.lessons import ANSWER, NUMBERS, learn_answer
from gateway.framework import Endpoint
from gateway.sharing.shared_loads import core_name
from gateway.sharing.siblings import Siblings

log = logging.getLogger("kvgate.sharing")

TOPIC = "lessons"

GATHERED = 0.05
"""Seconds for which lessons are gathered: a fit is published once a turn of requests, and does not need them sooner."""

Told = tuple[str, str, str, tuple[float, ...]]
"""An engine core's name, a model's name, and a lesson's kind and numbers."""

HEARD = 500.0
"""Lessons a second that a worker hears of all others together, at the most: under 1 % of a core, and eight a second of
each of 64 engines, beside those of its own answers."""

MOST = 2000
"""Lessons that are gathered. More in so short a time teach nothing that these do not."""

_decoder = msgspec.msgpack.Decoder(list[Told])


class SharedLessons:
    """A listener of the fleet, which has each core's cost model tell what it learns, and learn what others tell.

    ``chance``: chooses what is told where not all is. Each lesson has the same chance, whatever its kind, so that what
    others count and what they learn stay in proportion.
    """

    def __init__(self, siblings: Siblings, chance: Random) -> None:
        self._siblings = siblings
        self._chance = chance
        self._endpoints: dict[str, list[Endpoint]] = {}
        self._gathered: list[Told] = []
        siblings.hear(TOPIC, self._hear)

    def endpoint_added(self, endpoint: Endpoint, /) -> None:
        name, cost = core_name(endpoint), endpoint.cost
        assert isinstance(cost, FittedCost)
        self._endpoints.setdefault(name, []).append(endpoint)
        cost.tell = partial(self._tell, name)

    def endpoint_dropped(self, endpoint: Endpoint, /) -> None:
        """Its requests that still run teach the others nothing new."""
        name = core_name(endpoint)
        left = self._endpoints[name]
        left.remove(endpoint)
        if not any(one.cost is endpoint.cost for one in left):
            assert isinstance(endpoint.cost, FittedCost)
            endpoint.cost.tell = None
        if not left:
            del self._endpoints[name]

    def engine_restarted(self, endpoint: Endpoint, /) -> None:
        pass

    def engine_asleep(self, endpoint: Endpoint, /) -> None:
        pass

    def kv_source(self, endpoint: Endpoint, source: object, /) -> None:
        pass

    def _tell(self, core: str, kind: str, numbers: tuple[float, ...], model: str = "", /) -> None:
        if not self._gathered:
            asyncio.get_running_loop().call_later(GATHERED, self._flush)
        if len(self._gathered) < MOST:
            self._gathered.append((core, model, kind, numbers))

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, []
        tellers = max(1, len(self._siblings.live) - 1)  # each worker hears so many others
        share = HEARD * GATHERED / tellers
        if len(gathered) > share:  # of many workers each tells less than one a time
            whole = int(share)
            gathered = self._chance.sample(gathered, whole + (self._chance.random() < share - whole))
        if gathered:
            self._siblings.tell(TOPIC, msgspec.msgpack.encode(gathered))

    def _hear(self, number: int, message: bytes) -> None:
        try:
            told = _decoder.decode(message)
        except msgspec.MsgspecError as error:
            log.warning("worker %d tells lessons that cannot be read: %s", number, error)
            return
        for core, model, kind, numbers in told:
            endpoints = self._endpoints.get(core)
            if not endpoints or len(numbers) != NUMBERS.get(kind) or not all(map(isfinite, numbers)):
                continue
            if kind == ANSWER:
                for endpoint in endpoints:
                    if endpoint.model.name == model:
                        learn_answer(endpoint.model, *numbers)
                        break
            else:
                cost = endpoints[0].cost
                assert isinstance(cost, FittedCost)
                cost.hear(kind, numbers)
