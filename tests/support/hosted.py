"""Workers of a host in virtual time: one fleet and its ledgers, a queue in each, and messages between them that arrive
when the test wants it: in order from one worker to another, and in any order otherwise."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any

from gateway.core.observer import NULL_OBSERVER
from gateway.errors import GatewayError
from gateway.flow.asking import Asking
from gateway.flow.entry import Entry
from gateway.flow.guarded_order import GuardedOrder
from gateway.flow.guests import Guest, Guests
from gateway.flow.questions import Ended, Message, Question, Stay, matches_of, question
from gateway.flow.queue import HeldQueue
from gateway.flow.settings import QueueSettings
from gateway.framework import Endpoint, NoParameters, Plan
from gateway.framework.fleet import Model
from gateway.placement.placing import Placement, book, decide
from queues.fair_cost import FairCost
from tests.support.candidates import context
from tests.support.held import Asked, Held


@dataclass(eq=False)
class Waiter:
    """A request of one worker. ``fates``: what has become of it, one in the end. ``number``: of the question that was
    granted room."""

    worker: Worker
    entry: Entry
    fates: list[str] = field(default_factory=list)
    error: Exception | None = None
    placement: Placement | None = None
    number: int = 0
    asked: int = 0

    # flow.asking.Asker

    def question(self, number: int) -> Question:
        self.asked += 1
        call, host = self.entry.call, self.worker.host
        assert call is not None
        call.request.matches = host.world.index.match(call.keys, call.request.prompt_tokens, host.world.all)
        stay = Stay(self.entry.arrived, self.entry.deadline, self.entry.size)
        return question(number, call.request, call.keys, stay, host.world.all)

    def granted(self, legs: Sequence[tuple[str, str]], waited_for: str, number: int) -> bool:
        call, world = self.entry.call, self.worker.host.world
        assert call is not None
        names = [name for _, name in legs]
        could = [one for one in world.all if one.name in names and one.engine.up]
        if not could:
            return False
        self.number = number
        self.book(decide(call, could, world.index, world.scheduler))
        return True

    def refused(self, error: Exception) -> None:
        self.fates.append("refused")
        self.error = error

    def comes_home(self) -> None:
        self.worker.arrive(self)

    def book(self, plan: Plan) -> None:
        call, world = self.entry.call, self.worker.host.world
        assert call is not None
        self.fates.append("placed")
        self.placement = book(call, plan, world.index, world.clock.now)


class Worker:
    """As its queues' driver, and their host."""

    def __init__(self, host: Hosted, number: int) -> None:
        self.host, self.number = host, number
        self.live = {number}
        settings, world = host.world.settings, host.world
        order = GuardedOrder(FairCost(NoParameters(), context()), "test", NULL_OBSERVER)
        self.held = HeldQueue("m", settings, order, self, world.clock, Random(2))
        self.guests = Guests(lambda model: self if model == "m" else None, self.tell, world.clock)
        self.asking = Asking(self.tell)
        self.waiters: dict[Entry, Waiter] = {}

    # what a request does

    def comes(self, entry: Entry) -> Waiter:
        waiter = self.waiters[entry] = Waiter(self, entry)
        if self.asking.lead is None:
            self.arrive(waiter)
        elif self.asking.anybody_waits("m"):
            self.asking.ask(waiter)
        else:
            assert entry.call is not None
            try:
                plan = self.decide(entry)
            except GatewayError as error:
                waiter.refused(error)
                return waiter
            if self.held.room.lacks(entry.call, plan, self.host.world.clock.now)[0] is None:
                waiter.book(plan)
            else:
                self.asking.ask(waiter)
        return waiter

    def arrive(self, waiter: Waiter) -> None:
        try:
            self.held.arrive(waiter.entry)
        except GatewayError as error:
            waiter.refused(error)

    def leaves(self, waiter: Waiter) -> None:
        if not waiter.fates:
            waiter.fates.append("left")
            if not self.asking.leave(waiter):
                self.held.leave(waiter.entry)

    def ends(self, waiter: Waiter) -> None:
        assert waiter.placement is not None
        waiter.fates.append("ended")
        waiter.placement.end(ok=True)
        if waiter.number:
            self.asking.ended(waiter.number, 100.0, None)
        else:
            self.held.settled(waiter.entry, output=100.0)

    # flow.driver.Driver, flow.guests.Host

    @property
    def model(self) -> Model:
        return self.host.world.model

    def endpoint(self, name: str) -> Endpoint | None:
        return next((one for one in self.host.world.all if one.name == name), None)

    def look_soon(self) -> None: ...

    def endpoints(self) -> Sequence[Endpoint]:
        return self.host.world.all

    def decide(self, entry: Entry) -> Plan:
        if isinstance(entry, Guest):
            entry.request.matches = matches_of(entry.question, self.host.world.all)
            return self.host.world.scheduler.schedule(entry.request, self.host.world.all)
        return self.host.world.decide(entry)

    def place(self, entry: Entry, plan: Plan) -> None:
        self.host.granted.append(entry.request.id)
        self.host.costs[entry.request.id] = entry.cost
        if isinstance(entry, Guest):
            self.guests.place(entry, plan)
        else:
            self.waiters[entry].book(plan)

    def refuse(self, entry: Entry, error: Exception) -> None:
        if isinstance(entry, Guest):
            self.guests.refuse(entry, error)
        else:
            self.waiters[entry].refused(error)

    # messages

    def tell(self, number: int, message: Message) -> bool:
        return self.host.send(self.number, number, message)

    def changed(self, joined: set[int], left: set[int]) -> None:
        before = min(self.live)
        self.live = (self.live - left) | joined
        for number in left:
            self.guests.left(number)
        lead = min(self.live)
        if lead != before or lead in joined or lead in left:
            mine = [self.waiters[one] for one in self.held.lines if not isinstance(one, Guest)]
            self.asking.changed(None if lead == self.number else lead, frozenset(left))
            if lead != self.number:
                for waiter in mine:
                    self.held.withdraw(waiter.entry)
                    self.asking.ask(waiter)


class Hosted:
    """``granted``: by id, requests that a queue has placed or granted room, in order. ``costs``: theirs, then."""

    def __init__(self, workers: int, endpoints: int = 2, **of: Any) -> None:
        self.world = Held(endpoints, settings=of.pop("settings", None) or QueueSettings(), **of)
        self.pipes: dict[tuple[int, int], deque[Message | tuple[set[int], set[int]]]] = {}
        self.workers: dict[int, Worker] = {}
        self.broken: set[tuple[int, int]] = set()
        self.granted: list[str] = []
        self.costs: dict[str, float] = {}
        self.void: list[Waiter] = []
        for number in range(workers):
            self.starts(number)
        self.deliver_all()

    def starts(self, number: int) -> None:
        worker = Worker(self, number)
        for other in self.workers:
            self.pipes[number, other] = deque([({number}, set())])
            self.pipes[other, number] = deque([({other}, set())])
        self.workers[number] = worker

    def dies(self, number: int) -> None:
        worker = self.workers.pop(number)
        for waiter in worker.waiters.values():
            if waiter.placement is not None and "ended" not in waiter.fates:
                waiter.placement.end(ok=False)
            self.void.append(waiter)
        for guest in list(worker.guests._kept):
            guest.release()
        for other in self.workers:
            del self.pipes[other, number]
            self.pipes[number, other].append((set(), {number}))

    def cut(self, one: int, other: int) -> None:
        """Their link. What was on its way is lost, and so is what one tells before it hears that they are linked
        again."""
        for pair in ((one, other), (other, one)):
            self.broken.add(pair)
            news = [what for what in self.pipes[pair] if isinstance(what, tuple)]
            self.pipes[pair] = deque([*news, ({pair[0]}, {pair[0]})])

    def send(self, sender: int, receiver: int, message: Message) -> bool:
        if sender not in self.workers or receiver not in self.workers:
            return False
        if (sender, receiver) not in self.broken:
            self.pipes[sender, receiver].append(message)
        return True

    def deliver(self, pair: tuple[int, int]) -> None:
        what, worker = self.pipes[pair].popleft(), self.workers[pair[1]]
        if not self.pipes[pair] and pair[0] not in self.workers:
            del self.pipes[pair]
        if isinstance(what, tuple):
            self.broken.discard((pair[1], pair[0]))
            worker.changed(*what)
        elif isinstance(what, Question | Ended) or type(what).__name__ in ("Leave", "Taken", "Forget", "Room"):
            worker.guests.heard(pair[0], what)
        else:
            worker.asking.heard(pair[0], what)

    def full_pipes(self) -> list[tuple[int, int]]:
        return [pair for pair, pipe in self.pipes.items() if pipe and pair[1] in self.workers]

    def deliver_all(self) -> None:
        while full := self.full_pipes():
            self.deliver(full[0])

    def pump(self) -> float:
        again = inf
        for worker in self.workers.values():
            again = min(again, worker.held.pump(), worker.guests.expire())
        return again

    @property
    def waiters(self) -> list[Waiter]:
        """Of all that live."""
        return [waiter for worker in self.workers.values() for waiter in worker.waiters.values()]

    def entry(self, *of: Any, **given: Any) -> Entry:
        return self.world.entry(*of, **given)


__all__ = ["Asked", "Hosted", "Waiter", "Worker"]
