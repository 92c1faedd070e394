"""Start-time fair queueing, which the fair orders share: each tenant is served by its weight.

Goyal, Vin, Cheng, IEEE/ACM Transactions on Networking 5(5), 1997, with a queue for each tenant:

    S = max(V, F)            where a tenant begins to wait
    V = S, F = S + c / w     where one of its requests is placed; while more of them wait, its next S is this F
    F = F + (c' - c) / w     where that has ended, and has really cost c'

S: a tenant's start tag, its turn: least first. F: its finish tag. V: the start tag of what was placed last. c: what is
charged. w: the tenant's weight. A start tag belongs to a tenant and not to a request, so that a tenant's own requests
may be in any order.

Each band has tags of its own, for all endpoints together. Of two tenants with work waiting for the same endpoint, the
one that has had less of all of them goes first. So from when both wait there, and for no other, what they have had by
weight differs by at most the larger of their largest c / w. A tenant whose requests belong to one engine, which holds
their prefixes, has little of all engines, and so goes first at that one: with tags for each endpoint, chats that had
gathered at two of eight engines waited there for each other (``kvgate replay --tenants greedy-many`` at 181 requests/s:
92 % of them met their objectives instead of 99 %). A tenant saves up nothing of what it leaves unused: it begins at V.

Replicas of a gateway have a queue each, and so tags each. Once a second each hears what the others have charged, and
adds it to F: else who waits at one of them only is served less than who waits at all of them, and who is light anywhere
waits twice as long. A second late is soon enough.

Once nobody waits in a band, its tags are forgotten, and so is what was charged: idle time of engines is lent. While
somebody waits, a tenant is forgotten once it has nothing waiting, nothing running, and F <= V.
"""

from __future__ import annotations

from gateway.framework import Waiting

LATE = 1e9
"""Seconds, more than a process runs: what is late comes after all that is not."""

FEW = 16
"""Tenants of a band that are not looked through for those that can be forgotten."""


def in_time_first(waiting: Waiting) -> float:
    """The rank of a request among its tenant's: those that can still meet their objective, then those that cannot; in
    both who arrived first. Under overload first come, first served makes all of them late."""
    return waiting.arrived + LATE if waiting.late else waiting.arrived


MOST_TOLD = 1024
"""Tenants of which it is remembered what they were charged, until it is asked for."""


class StartTimeOrder:
    """An order that is fair by what ``charge`` and ``spent`` say."""

    lends_idle = True

    def __init__(self) -> None:
        self._bands: dict[int, _Band] = {}
        self._charged: dict[Waiting, tuple[_Flow, float]] = {}
        self._untold: dict[tuple[int, str], float] | None = None
        """What ``charges`` tells next; None: nobody has asked yet."""

    def charge(self, waiting: Waiting) -> float:
        """What a request is charged when it is placed; at least 0, in any unit."""
        raise NotImplementedError

    def spent(self, waiting: Waiting, seconds: float, output: float) -> float:
        """What it has really cost, in the same unit. ``seconds``, ``output``: see ``Order.settled``."""
        raise NotImplementedError

    def queued(self, waiting: Waiting, /) -> None:
        key = waiting.request.band
        band = self._bands.get(key)
        if band is None:
            band = self._bands[key] = _Band()
        flow = band.flow(waiting.request.tenant.name)
        if not flow.waiting:
            band.busy += 1
            if flow.finish < band.virtual:
                flow.finish = band.virtual
        flow.waiting += 1

    def rank(self, waiting: Waiting, /) -> float:
        return in_time_first(waiting)

    def turn(self, waiting: Waiting, /) -> float:
        return self._bands[waiting.request.band].flows[waiting.request.tenant.name].finish

    def placed(self, waiting: Waiting, /) -> None:
        key, tenant = waiting.request.band, waiting.request.tenant
        band = self._bands[key]
        flow = band.flows[tenant.name]
        flow.waiting -= 1
        if not flow.waiting:
            band.busy -= 1
            if not band.busy:
                del self._bands[key]
                return
        if flow.finish > band.virtual:
            band.virtual = flow.finish
        charged = self.charge(waiting)
        flow.finish += charged / tenant.weight
        self._note(key, tenant.name, charged / tenant.weight)
        flow.running += 1
        self._charged[waiting] = flow, charged
        band.forget()

    def left(self, waiting: Waiting, /) -> None:
        key = waiting.request.band
        band = self._bands[key]
        flow = band.flows[waiting.request.tenant.name]
        flow.waiting -= 1
        if not flow.waiting:
            band.busy -= 1
            if not band.busy:
                del self._bands[key]

    def settled(self, waiting: Waiting, seconds: float, output: float, /) -> None:
        charged = self._charged.pop(waiting, None)
        if charged is not None:
            flow, before = charged
            request = waiting.request
            flow.running -= 1
            more = (self.spent(waiting, seconds, output) - before) / request.tenant.weight
            flow.finish += more
            self._note(request.band, request.tenant.name, more)

    def charges(self) -> dict[tuple[int, str], float]:
        """See ``Order``: over the tenants' weights."""
        untold, self._untold = self._untold, {}
        return untold or {}

    def charged_elsewhere(self, band: int, tenant: str, amount: float, /) -> None:
        """See ``Order``."""
        found = self._bands.get(band)
        flow = None if found is None else found.flows.get(tenant)
        if flow is not None:
            flow.finish += amount

    def _note(self, band: int, tenant: str, amount: float) -> None:
        untold, key = self._untold, (band, tenant)
        if untold is not None and (key in untold or len(untold) < MOST_TOLD):
            untold[key] = untold.get(key, 0.0) + amount


class _Flow:
    """A tenant in a band. ``finish``: F, which is S while it waits. ``waiting``, ``running``: requests
    that wait, and that are charged and not settled."""

    __slots__ = ("finish", "running", "waiting")

    def __init__(self, finish: float) -> None:
        self.finish = finish
        self.waiting = 0
        self.running = 0


class _Band:
    """A band. ``virtual``: V. ``busy``: tenants with something waiting. ``many``: at so many it is
    looked for who can be forgotten."""

    __slots__ = ("busy", "flows", "many", "virtual")

    def __init__(self) -> None:
        self.virtual = 0.0
        self.flows: dict[str, _Flow] = {}
        self.busy = 0
        self.many = FEW

    def flow(self, tenant: str) -> _Flow:
        found = self.flows.get(tenant)
        if found is None:
            found = self.flows[tenant] = _Flow(self.virtual)
        return found

    def forget(self) -> None:
        """Those whose next start tag is V in any case. Twice as many as are left may come before the next time."""
        if len(self.flows) < self.many:
            return
        self.flows = {
            name: flow
            for name, flow in self.flows.items()
            if flow.waiting or flow.running or flow.finish > self.virtual
        }
        self.many = max(FEW, 2 * len(self.flows))
