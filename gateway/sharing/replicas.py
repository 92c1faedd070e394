"""A process's part among the replicas: the server between them, the bus where it speaks for its host, and the homes of
stored responses.

Of the workers of a host only the lead is on the bus, for all of them: what it hears is in the host's table of loads.
When another one leads, that one speaks for the host from then on, and has all told to it anew.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import blake2b
from struct import Struct

from gateway.core.observer import Observer
from gateway.core.tasks import TaskSet
from gateway.framework import Clock
from gateway.sharing.bus import Bus, Charges, HostTable, NoCharges
from gateway.sharing.homes import Homes
from gateway.sharing.load_memory import REPLICAS
from gateway.sharing.peers import Seen
from gateway.sharing.settings import SharingSettings
from gateway.sharing.siblings import Siblings
from gateway.valkey.link import Link

UNSEEN = "unseen"
"""The topic under which the lead tells its siblings how much of the replicas' bookings cannot be seen."""

LOOK = 0.05
"""Seconds between two looks at who leads, and two of these words. What cannot be seen changes as fast as the replicas'
traffic does, and when they fall silent."""

NUMBER = Struct("<d")


class Replicas:
    """``settings``: with a url. ``table``: of the host's loads. ``siblings``: the other workers of this host; None:
    there are none. ``host``: its name among the replicas (``name_of``); ``place``: its host and port, for people.
    Raises ConfigError.

    ``name``: of the replicas that belong together. ``link``: for what this process asks the server. ``bus``: None where
    another worker speaks for this host. ``unseen``: bookings of other replicas that are not in the table, about.
    ``charges``: what this host's queues charge; set before ``start`` where there are some.
    """

    def __init__(
        self,
        settings: SharingSettings,
        table: HostTable,
        *,
        siblings: Siblings | None,
        host: str,
        place: str,
        clock: Clock,
        observer: Observer,
        chance: random.Random,
    ) -> None:
        assert settings.url is not None
        self.name, self.host, self.place = settings.name, host, place
        self.link = Link(settings.url, {}, clock, chance)
        self.homes = Homes(self.link, settings.name)
        self.charges: Charges = NoCharges()
        self._told_unseen = 0.0
        self._siblings = siblings
        self._make = partial(
            Bus,
            settings,
            table,
            REPLICAS,
            replica=host,
            place=place,
            clock=clock,
            observer=observer,
            chance=chance,
        )
        self.bus: Bus | None = None
        self._tasks = TaskSet()
        if siblings is not None:
            siblings.hear(UNSEEN, self._hear_unseen)

    @property
    def leads(self) -> bool:
        return self._siblings is None or self._siblings.is_lead

    @property
    def connected(self) -> bool:
        """Whether the server is there, as far as this process knows."""
        return self.link.up if self.bus is None else self.link.up and self.bus.link.up

    @property
    def unseen(self) -> float:
        return self._told_unseen if self.bus is None else self.bus.unseen

    def states(self) -> Mapping[str, int]:
        """How many other replicas are ``fresh`` and ``stale``; empty where another worker of this host hears them."""
        return {} if self.bus is None else self.bus.states()

    def seen(self) -> Sequence[Seen]:
        return () if self.bus is None else self.bus.seen()

    def start(self) -> None:
        """After the siblings."""
        self.link.start()
        self._tasks.start(self._follow(), name="follow who speaks for this host")

    async def close(self) -> None:
        """The replica ends, unless other workers of this host live on."""
        await self._tasks.close()
        if self.bus is not None:
            await self.bus.close(ends=self._siblings is None or len(self._siblings.live) == 1)
            self.bus = None
        await self.link.close()

    async def _follow(self) -> None:
        said = -1.0
        while True:
            await self._become()
            if self.bus is not None and self._siblings is not None and self.unseen != said:
                said = self.unseen
                self._siblings.tell(UNSEEN, NUMBER.pack(said))
            await asyncio.sleep(LOOK)

    async def _become(self) -> None:
        """Be on the bus if, and only if, this process leads."""
        if self.leads and self.bus is None:
            self.bus = self._make()
            self.bus.charges = self.charges
            self.bus.start()
        elif not self.leads and self.bus is not None:
            bus, self.bus = self.bus, None
            await bus.close(ends=False)

    def _hear_unseen(self, number: int, message: bytes) -> None:
        if not self.leads and len(message) == NUMBER.size:
            (unseen,) = NUMBER.unpack(message)
            self._told_unseen = unseen if 0.0 <= unseen <= 1e9 else 0.0


def name_of(directory: str | None) -> str:
    """Of this host's gateway among the replicas: the same for all of its workers, whose sockets are in ``directory``,
    which each start of the service has anew; without workers, one of its own each time."""
    if directory is None:
        return secrets.token_hex(8)
    return blake2b(f"{socket.gethostname()} {directory}".encode(), digest_size=8).hexdigest()
