"""A model's queue: requests wait here, and not in an engine, until the endpoint that each is planned for has room.

``HeldQueue`` is pure: synchronous, without a loop, in whatever time its clock has. A driver (the proxy's, the replay's)
says what happens, and is told what becomes of each request (``Driver``):

    arrive, leave           a request comes to be placed; its client is gone
    first_token, settled    an endpoint may have room; what was placed has ended
    look_at                 a scrape came, or an endpoint is up again
    placed_again            another attempt was booked, which does not wait

Then it calls ``pump``, once for all that happened in one turn of the loop, which also says when to call it again.

How one is placed:

- While nobody waits, who has it placed needs to ask for no more than whether there is room (``placed.at_once``).
- A newcomer is planned by the scheduler, with what waits before it as a part of each endpoint's cost
  (``Request.ahead``). If all endpoints of the plan have room, and nobody waits there, it is placed.
- Else it waits for the first of them that has no room. When that has room, the first in order there is planned again,
  on what is true then. It is placed, or waits for another endpoint that is better now. If it finds no room, nobody
  passes it: it keeps the next room. So a large request is not passed by small ones for ever.
- If an endpoint has room and nobody waits for it, those who are first elsewhere are planned again. So is whoever has
  waited for ``patience`` seconds, and everybody whose endpoint is gone. Half-way to being late, each is placed on the
  best of the other endpoints if that has room, be it dearer. The work of one ``pump`` is bounded.
"""

from __future__ import annotations

from math import inf
from random import Random

from gateway.errors import NoEndpoint
from gateway.flow.drain import Drain
from gateway.flow.driver import Driver
from gateway.flow.entry import Entry, State
from gateway.flow.guarded_order import GuardedOrder
from gateway.flow.lines import Lines
from gateway.flow.live_kv import LiveKv
from gateway.flow.obstacle import DOWN, TURN, elsewhere, obstacle
from gateway.flow.placed import Placed
from gateway.flow.room import Room
from gateway.flow.settings import QueueSettings
from gateway.flow.shed import MOST_DROPPED, Shed
from gateway.flow.waiters import Waiters
from gateway.flow.window import SLACK, TOLERANCE, Windows
from gateway.framework import Clock, Endpoint, Plan
from gateway.kvcache.index.keys import BlockKeys

TICK = 0.05
"""Seconds after which all endpoints are looked at: a sixth of the window, so that none runs dry."""

MOST_DECISIONS = 32
"""Plans made in one pump: some milliseconds with 64 endpoints, in which no stream goes on."""

MOST_ALARMS = 256
"""Requests that are refused or become late in one pump: about as long."""

OFFERED = 4
"""Requests that are planned again at each look at all, if an endpoint has room for which nobody waits."""

FREE_MOVES = 4
"""Times that a request moves to an endpoint once that looks better; from then on once a tick, if two look alike."""


class HeldQueue:
    """``lines``, ``room``, ``windows``: only to be shown. ``live``: prompts that are on engines. ``served``: engine
    seconds of all that was settled. ``counts_all``: the order counts what is placed while nobody waits."""

    def __init__(
        self, model: str, settings: QueueSettings, order: GuardedOrder, driver: Driver, clock: Clock, random: Random
    ) -> None:
        """``model``: its name. ``random``: for Retry-After."""
        self._settings = settings
        self.lines: Lines[Entry] = Lines(order, settings.reserved)
        self.counts_all = not order.lends_idle
        self._driver = driver
        self._now = clock.monotonic
        self.live = LiveKv()
        self.windows = Windows(adapt=settings.adapt)
        self.room = Room(settings, self.live, self.windows)
        self.served = 0.0
        self._drain = Drain(settings.max_wait, random)
        self._waiters = Waiters(self.lines, settings.patience)
        self._shed = Shed(model, settings, self._waiters, self._drain)
        self._up: dict[int, Endpoint] = {}
        self._left = 0  # plans that this pump may yet make
        self._look_at_all = -inf

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self.lines)

    # What happens

    def arrive(self, entry: Entry, plan: Plan | None = None) -> bool:
        """Place it, or let it wait. ``plan``: made for it now, while nobody waited; None: it has none. Returns whether
        it was placed. Others may be placed or refused meanwhile.

        Raises Saturated, with ``reason`` and ``retry_after``, if it may not wait, and what ``Driver.decide`` and
        ``Driver.place`` raise. Then it is not in the queue, and nothing is charged.
        """
        now, request = self._now(), entry.request
        if self.lines:
            request.ahead = self.lines.ahead(request)
        if plan is None:
            plan = self._driver.decide(entry)
        entry.price(plan, self._settings)
        entry.planned_at = now
        where, reason = obstacle(entry, plan, self.room, self.lines, now)
        if where is None:
            self._driver.place(entry, plan)
            self.lines.place_at_once(entry, plan.decode.slot)
            self._placed(entry, plan)
            return True
        self._shed.newcomer(entry, request.ahead, self._up_now(), now)
        entry.began, entry.late = entry.arrived, now >= entry.due
        self._waiters.begin(entry, where, reason, now)
        for dropped in range(MOST_DROPPED + 1):
            out = self._shed.crowded_out(entry)
            if out is None:
                break
            if out is entry or dropped == MOST_DROPPED:
                error = self._shed.full(entry, now)
                self._drop(entry)
                raise error
            self._refuse(out, self._shed.full(out, now))
        if self._is_before_all(entry, plan, now):
            self._grant(entry, plan, now)
            return True
        return False

    def leave(self, entry: Entry) -> None:
        """Its client is gone. If it waits, it waits no more, and nothing is charged."""
        if entry.state is State.WAITING:
            self._drop(entry)

    def withdraw(self, entry: Entry) -> None:
        """It waits no more, but elsewhere: it may arrive again, here or there. Nothing is charged."""
        self._drop(entry, State.NEW)

    def ended_elsewhere(self, seconds: float) -> None:
        """A request that this queue has not seen took so many seconds of an engine."""
        self._drain.ended += seconds
        self._drain.settle(self._now())

    def placed_again(self, entry: Entry | Placed, plan: Plan, keys: BlockKeys) -> None:
        """An attempt of it failed, and it was booked by ``plan`` now. Its charge stays as it is. ``keys``: its
        prompt's."""
        if entry.state is State.PLACED:
            if entry.held is not None:
                entry.held.release()
            self._waiters.touch(entry.plan)
            entry.plan, entry.held = plan, self.live.hold(plan.decode, keys)

    def first_token(self, endpoint: Endpoint, predicted: float | None, seconds: float) -> None:
        """``predicted``: ``Booking.predicted``, None where no prompt was computed there; ``seconds``: from
        ``Booking.at`` to the first token."""
        windows = self.windows
        if predicted is not None and (windows.narrowed or seconds > TOLERANCE * (predicted + SLACK)):
            windows.first_token(endpoint, predicted, seconds)  # else it would change nothing there: a call less
        if self.lines.places:
            self._waiters.touched[endpoint.slot] = None

    def settled(self, entry: Entry | Placed, *, output: float = 0.0, computed: int | None = None) -> float:
        """What was placed is over, however; harmless if that was reported before. Returns the engine seconds that it
        took.

        ``output``: tokens of its answer. ``computed``: prompt tokens that the engine computed; None: those that were
        expected; 0: none, since it came to no engine.
        """
        if entry.state is not State.PLACED:
            return 0.0
        held = entry.held
        if held is not None and self.live.new.pop(held, None) is None:
            held.release()
        if self.lines.places:
            self._waiters.touch(entry.plan)
        entry.state = State.OVER
        new = entry.new_tokens if computed is None else computed
        seconds = entry.prompt_cost * new / entry.new_tokens + output * entry.token_cost
        self.served += seconds
        self._drain.ended += seconds
        if (now := self._now()) >= self._drain.due:
            self._drain.settle(now)
        if isinstance(entry, Entry):
            self.lines.settled(entry, seconds, output)
        return seconds

    def look_at(self, endpoint: Endpoint) -> None:
        """It may have room now, which the next ``pump`` uses."""
        if self.lines.places:
            self._waiters.touched[endpoint.slot] = None

    # What follows from it

    def pump(self) -> float:
        """Refuse those whose time is up, and place those who may go.

        Returns when to call it again at the latest: Clock.monotonic(), now if there is more to do; inf: nobody waits.
        """
        touched = self._waiters.touched
        if not self.lines:
            touched.clear()
            return inf
        now, self._left = self._now(), MOST_DECISIONS
        self._up = {endpoint.slot: endpoint for endpoint in self._up_now()}
        more = self._ring(now)
        if now >= self._look_at_all:
            self._look_at_all = now + TICK
            touched |= dict.fromkeys(self.lines.slots)
            self._offer(now)
        while touched and self._left > 0:
            slot = next(iter(touched))
            del touched[slot]
            self._serve(slot, now)
        if not self.lines:
            return inf
        if more or touched:
            return now
        return min(self._look_at_all, self._waiters.next_alarm)

    def _ring(self, now: float) -> bool:
        """Those whose time has come: to be refused, to be late, to be planned anew. Returns whether there are more."""
        waiters = self._waiters
        for _ in range(MOST_ALARMS):
            if self._left <= 0 or waiters.next_alarm > now:
                break
            entry = waiters.first_alarm()
            if now >= entry.deadline:
                self._refuse(entry, self._shed.expired(entry, now, down=not self._up))
                continue
            if now >= entry.halfway and not entry.offered:
                entry.offered = True
                self._left -= 1
                if (plan := elsewhere(entry, self._driver, self.room, self.lines, now)) is not None:
                    self._grant_or_refuse(entry, plan, now)
                    continue
            if now >= entry.due:
                self.lines.turn_late(entry)
            if now >= entry.planned_at + self._settings.patience:
                self._plan_anew(entry, now, first=self.lines.first(entry.slot) is entry)
            if entry.state is State.WAITING:
                waiters.set_alarm(entry)
        return waiters.next_alarm <= now

    def _offer(self, now: float) -> None:
        """If an endpoint has room and nobody waits for it, plan those anew who are first elsewhere."""
        slots = set(self.lines.slots)
        idle = (one for slot, one in self._up.items() if slot not in slots and not one.draining)
        if not any(not self.room.fullness(one, now).binding for one in idle):
            return
        for entry in self.lines.firsts()[:OFFERED]:
            if entry.planned_at < now:
                self._plan_anew(entry, now, first=True)

    def _serve(self, slot: int, now: float) -> None:
        """Place those who wait for this endpoint, in order, until one has no room."""
        while (entry := self.lines.first(slot)) is not None:
            where, call, request = entry.where, entry.call, entry.request
            assert where is not None
            assert call is not None
            if self._up.get(slot) is where and (request.bound or not where.draining):
                reason = self.room.binding(where, request, call.keys, now, leg=entry.leg_at(where))
                entry.reason = reason or entry.reason  # what it waited for
                if reason or (entry.moves > FREE_MOVES and now < entry.planned_at + TICK):
                    return
            elif not self._up:
                entry.reason = DOWN
                return
            if self._left <= 0:
                self._waiters.touched[slot] = None
                return
            if not self._plan_anew(entry, now, first=True):
                return

    def _plan_anew(self, entry: Entry, now: float, *, first: bool = False) -> bool:
        """Plan it on what is true now. ``first``: it is the first where it waits. Returns whether it has gone from
        there."""
        self._left -= 1
        entry.planned_at = now
        entry.request.ahead = self.lines.ahead(entry.request, entry.slot if first else None)
        try:
            plan = self._driver.decide(entry)
        except Exception as error:
            if isinstance(error, NoEndpoint) and not self._up:
                entry.reason = DOWN
                return False
            self._refuse(entry, error)
            return True
        where, reason = obstacle(entry, plan, self.room, self.lines, now, first=first)
        if where is None:
            self._grant_or_refuse(entry, plan, now)
            return True
        if where is entry.where:
            entry.plan, entry.reason = plan, reason
            return False
        entry.moves += 1
        self._waiters.step_aside(entry)
        entry.price(plan, self._settings)
        self._waiters.begin(entry, where, reason, now)
        if self._is_before_all(entry, plan, now):
            self._grant_or_refuse(entry, plan, now)
        return True

    def _is_before_all(self, entry: Entry, plan: Plan, now: float) -> bool:
        """Of one that has just begun to wait behind others: whether it is their first, and so has the room."""
        if entry.reason != TURN or self.lines.first(entry.slot) is not entry:
            return False
        return obstacle(entry, plan, self.room, self.lines, now, first=True)[0] is None

    def _grant_or_refuse(self, entry: Entry, plan: Plan, now: float) -> None:
        try:
            self._grant(entry, plan, now)
        except Exception as error:
            self._driver.refuse(entry, error)

    def _grant(self, entry: Entry, plan: Plan, now: float) -> None:
        """What waited has room. Raises what ``Driver.place`` raises: it waits no more then."""
        entry.price(plan, self._settings)
        if all(endpoint.slot != entry.slot for _, endpoint in plan.legs):
            self._waiters.move(entry, plan.decode.slot)
        try:
            self._driver.place(entry, plan)
        except BaseException:
            self._drop(entry)
            raise
        self._waiters.take(entry, now)
        self._placed(entry, plan)

    def _placed(self, entry: Entry, plan: Plan) -> None:
        call = entry.call
        assert call is not None
        entry.held = self.live.hold(plan.decode, call.keys)
        entry.waits_no_more(State.PLACED)

    def _refuse(self, entry: Entry, error: Exception) -> None:
        """What waited is refused."""
        self._drop(entry)
        self._driver.refuse(entry, error)

    def _drop(self, entry: Entry, state: State = State.OVER) -> None:
        """What waited does not any more, and is not placed."""
        self._waiters.drop(entry, self._now())
        if state is State.OVER:
            entry.waits_no_more(state)
        entry.state = state

    def _up_now(self) -> list[Endpoint]:
        return [endpoint for endpoint in self._driver.endpoints() if endpoint.engine.up]
