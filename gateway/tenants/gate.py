"""The gate between clients and the models: lets a request through while its tenant's and its key's limits and budget
allow, and charges what it used when it has ended.

A request passes three points, each in one synchronous step:

1. ``Gate.admit``, once its body is parsed: requests a minute, concurrent requests, a rough look at its tokens;
2. ``Grant.exact``, once it is tokenized: takes its prompt's tokens and its expected output;
3. ``Grant.settle``, at its end, however it ended: corrects that to what was used.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping

from gateway.core.observer import Charge, Observer
from gateway.errors import LimitReached
from gateway.framework import Clock
from gateway.tenants.accounts import Account, Calendar
from gateway.tenants.budgets import Budget
from gateway.tenants.gcra import CELLS, Bucket
from gateway.tenants.identity import Caller
from gateway.tenants.limit_headers import anthropic_limit_headers, limit_headers
from gateway.tenants.limit_settings import NO_LIMITS, LimitSettings, PriceSettings
from gateway.tenants.meters import Meter, Refusal, of_model
from gateway.tenants.places import Counter, OwnState, State
from gateway.tenants.refusals import budget_spent, limit_reached
from gateway.tenants.scope import Scope, account_name
from gateway.tenants.settings import HEADER
from gateway.tenants.waiting import wait_for_parts

log = logging.getLogger("kvgate.tenants")

MAX_SCOPES = 16384
"""Pairs of a caller and a model whose limits are looked up only once. A configuration that is read again makes new
callers; the old ones go with the rest when there are so many."""

MAX_HEADER_TENANTS = 4096
"""Tenants that only a header names, whose use is remembered: several times what may be live at once."""


class Gate:
    """One for the process: what is used outlives a configuration. ``prices``: gives those in force, by model name or
    ``beginning*``. ``state``: where it is kept what is used, by ``tenant:NAME``, ``header:NAME`` and ``key:ID``; None:
    in this process."""

    def __init__(
        self,
        prices: Callable[[], Mapping[str, PriceSettings]],
        clock: Clock,
        observer: Observer,
        state: State | None = None,
    ) -> None:
        self.clock = clock
        self.calendar = Calendar(clock)
        self.state: State = OwnState(clock, CELLS) if state is None else state
        self._prices = prices
        self._observer = observer
        self._meters: dict[tuple[str, str], Meter] = {}
        self._budgets: dict[str, Budget] = {}
        self._scopes: dict[tuple[Caller, str], Scope] = {}
        self._of_headers: OrderedDict[str, None] = OrderedDict()

    def admit(self, caller: Caller, model: str, estimate: int, *, anthropic: bool = False) -> Grant:
        """Let a request begin. ``model``: its configured name. ``estimate``: its prompt's tokens, roughly; 0 where
        nothing can be said of them. ``anthropic``: the dialect of its answer's headers. Raises LimitReached."""
        scope = self._scopes.get((caller, model)) or self._look_up(caller, model)
        with self.state:
            now = self.clock.monotonic()
            for meter in scope.meters:
                meter.look(now)
            for tally in scope.tallies:
                tally.look()
            for meter in scope.meters:
                if (refusal := meter.refuses_begin(estimate, now)) is not None:
                    raise self.refused(scope, meter, refusal, anthropic)
            if scope.budget is not None and scope.budget.exhausted:
                raise self.spent(scope, scope.budget, anthropic)
            for meter in scope.meters:
                meter.place.concurrent.add(1)
                if meter.requests is not None:
                    meter.requests.take(1, now)
            for tally in scope.tallies:
                tally.open.add(1)
        return Grant(self, scope, anthropic)

    async def room(self, caller: Caller, model: str) -> None:
        """Wait until ``admit`` finds room, where other hosts have parts of a limit, for ``waiting.PATIENCE`` at most.
        Who has room does not wait, and neither does one for whom there is nothing anywhere."""
        scope = self._scopes.get((caller, model)) or self._look_up(caller, model)
        await wait_for_parts(scope, self.state, self.clock, 0, begins=True)

    def meters(self, caller: Caller) -> list[tuple[str, Meter]]:
        """The limits of ``caller``, with the models for which each of them is: ``*`` for all."""
        found = [("*", self._meter(caller, "", caller.settings.limits))]
        found += [(p, self._meter(caller, p, limits)) for p, limits in caller.settings.per_model.items()]
        if caller.key is not None:
            found.append(("*", self._key_meter(caller)))
        return found

    def budget(self, caller: Caller) -> Budget | None:
        """The budget of the caller's tenant."""
        settings = caller.settings.budget
        if settings is None:
            return None
        name = account_name(caller)
        budget = self._budgets.get(name)
        if budget is None:
            budget = self._budgets[name] = Budget(settings, self.state.tally(name), self.calendar)
        budget.settings = settings
        return budget

    def account(self, name: str) -> Account:
        """As of today; not to be changed."""
        with self.state:
            return self.state.tally(name).read()

    def budget_ratios(self) -> dict[tuple[str, ...], float]:
        """Spent by its amount, of each budget of a tenant that the configuration names."""
        with self.state:
            return {
                (name.removeprefix("tenant:"),): budget.spent / budget.settings.amount
                for name, budget in self._budgets.items()
                if name.startswith("tenant:")
            }

    def _look_up(self, caller: Caller, model: str) -> Scope:
        if len(self._scopes) >= MAX_SCOPES:
            self._forget()
        settings = caller.settings
        meters = [self._meter(caller, "", settings.limits)] if settings.limits != NO_LIMITS else []
        if (rule := of_model(settings.per_model, model)) is not None:
            meters.append(self._meter(caller, *rule))
        if caller.key is not None and caller.key_limits != NO_LIMITS:
            meters.append(self._key_meter(caller))
        names = [account_name(caller)]
        if caller.key is not None:
            names.append(f"key:{caller.key}")
        if caller.label == HEADER:
            self._remember(names[0])
        price = of_model(self._prices(), model)
        budget = self.budget(caller)
        if budget is not None and budget.settings.unit == "money" and price is None:
            log.warning(
                "tenant %s has a budget in money, and the model %s has no price: its answers cost nothing; add it to "
                "tenants.prices",
                *(caller.tenant.name, model),
            )
        scope = self._scopes[caller, model] = Scope(
            *(caller, model, tuple(meters), budget, None if price is None else price[1]),
            tallies=tuple(map(self.state.tally, names)),
        )
        return scope

    def _meter(self, caller: Caller, pattern: str, limits: LimitSettings) -> Meter:
        whose = f"tenant {caller.tenant.name}"
        return self._limited(account_name(caller), pattern, f"{whose} for {pattern}" if pattern else whose, limits)

    def _key_meter(self, caller: Caller) -> Meter:
        return self._limited(f"key:{caller.key}", "", f"key {caller.key}", caller.key_limits)

    def _limited(self, name: str, pattern: str, whose: str, limits: LimitSettings) -> Meter:
        with self.state:
            now = self.clock.monotonic()
            meter = self._meters.get((name, pattern))
            if meter is None:
                meter = self._meters[name, pattern] = Meter(whose, limits, now, self.state.meter(name, pattern))
            else:
                meter.look(now)
                if meter.settings != limits:
                    meter.become(limits, now)
        return meter

    def _remember(self, name: str) -> None:
        """Forget what tenants that only a header named have used, the oldest first, where there are too many."""
        self._of_headers[name] = None
        self._of_headers.move_to_end(name)
        if len(self._of_headers) > MAX_HEADER_TENANTS:
            oldest, _ = self._of_headers.popitem(last=False)
            self.state.forget(oldest)
            self._budgets.pop(oldest, None)

    def _forget(self) -> None:
        """Drop what would be made anew without a difference."""
        self._scopes.clear()
        with self.state:
            now = self.clock.monotonic()
            for meter in self._meters.values():
                meter.look(now)
            for key in [key for key, meter in self._meters.items() if meter.idle(now)]:
                del self._meters[key]

    def headers(self, scope: Scope, anthropic: bool) -> list[tuple[str, str]]:
        """See ``Grant.headers``."""
        if not scope.meters:
            return []
        with self.state:
            now = self.clock.monotonic()
            for meter in scope.meters:
                meter.look(now)
            if anthropic:
                return anthropic_limit_headers(scope.meters, now, self.clock.wall())
            return limit_headers(scope.meters, now)

    def refused(self, scope: Scope, meter: Meter, refusal: Refusal, anthropic: bool) -> LimitReached:
        """The error of a request that a limit refuses, which is counted."""
        self._observer.limit_refused(scope.caller.label, refusal.limit)
        return limit_reached(refusal, scope.model, meter.whose, self.headers(scope, anthropic))

    def spent(self, scope: Scope, budget: Budget, anthropic: bool) -> LimitReached:
        """The error of a request that finds the budget spent, which is counted."""
        self._observer.limit_refused(scope.caller.label, "budget")
        ends = budget.ends_in(self.clock.wall())
        return budget_spent(budget, scope.caller.tenant.name, ends, self.headers(scope, anthropic))


class Grant:
    """One request that was let through. It counts as concurrent until ``settle``, which gives back and charges once;
    every other call is harmless then."""

    __slots__ = ("_anthropic", "_gate", "_held", "_open", "_queued", "_scope", "_taken", "_tokens", "charge")

    def __init__(self, gate: Gate, scope: Scope, anthropic: bool) -> None:
        self._anthropic = anthropic
        self._gate = gate
        self._scope = scope
        self._open = True
        self._queued = False
        self._tokens = 0
        self._held: tuple[Counter, int] | None = None
        self._taken: list[tuple[Bucket, int, int]] = []
        self.charge: Charge | None = None
        """What it was charged; None until it is settled."""

    @property
    def caller(self) -> Caller:
        return self._scope.caller

    async def room(self, prompt_tokens: int, expected_output: float) -> None:
        """Before ``exact``, where other hosts have parts of the limits: see ``Gate.room``."""
        if self._open and not self._tokens:
            tokens = prompt_tokens + math.ceil(expected_output)
            await wait_for_parts(self._scope, self._gate.state, self._gate.clock, tokens, begins=False)

    def exact(self, prompt_tokens: int, expected_output: float) -> None:
        """Take the tokens of the prompt and the expected output of all its answers. Of a limit that is smaller than
        these all is taken. Raises LimitReached, with nothing taken."""
        if not self._open or self._tokens:
            return
        scope, gate = self._scope, self._gate
        output = math.ceil(expected_output)
        tokens = prompt_tokens + output
        with gate.state:
            now = gate.clock.monotonic()
            for meter in scope.meters:
                meter.look(now)
                if (refusal := meter.refuses_tokens(tokens, now)) is not None:
                    raise gate.refused(scope, meter, refusal, self._anthropic)
            if (budget := scope.budget) is not None:
                if budget.exhausted:
                    raise gate.spent(scope, budget, self._anthropic)
                self._held = budget.hold(
                    tokens, 0.0 if scope.price is None else scope.price.of(prompt_tokens, 0, output)
                )
            self._tokens = tokens
            for meter in scope.meters:
                meter.place.tokens_in_flight.add(tokens)
                if (bucket := meter.tokens) is not None:
                    amount = min(tokens, bucket.limit)
                    self._taken.append((bucket, bucket.take(amount, now), amount))

    def queue(self) -> None:
        """It begins to wait in a model's queue. Raises LimitReached."""
        meters, gate = self._scope.meters, self._gate
        if not self._open or self._queued:
            return
        with gate.state:
            for meter in meters:
                if (refusal := meter.refuses_queueing()) is not None:
                    raise gate.refused(self._scope, meter, refusal, self._anthropic)
            self._queued = True
            for meter in meters:
                meter.place.queued.add(1)

    def unqueue(self) -> None:
        """It waits no more; harmless if it did not."""
        if self._queued:
            self._queued = False
            with self._gate.state:
                for meter in self._scope.meters:
                    meter.place.queued.add(-1)

    def settle(self, prompt: int, cached: int, output: int) -> None:
        """It has ended, and used so many tokens: ``cached`` ones are among the ``prompt``'s. All 0: it used nothing."""
        if not self._open:
            return
        self._open = False
        scope, gate = self._scope, self._gate
        cached = min(cached, prompt)
        used = prompt + output
        cost = 0.0 if scope.price is None else scope.price.of(prompt, cached, output)
        with gate.state:
            self.unqueue()
            now = gate.clock.monotonic()
            for bucket, mark, amount in self._taken:
                if used < amount:
                    bucket.give_back(mark, amount - used, now)
                elif used > amount:
                    bucket.take(used - amount, now)
            if self._held is not None:
                counter, held = self._held
                counter.add(-held)
            for tally in scope.tallies:
                tally.charge(prompt, cached, output, cost)
                tally.open.add(-1)
            for meter in scope.meters:
                meter.place.tokens_in_flight.add(-self._tokens)
                meter.place.concurrent.add(-1)
        self.charge = Charge(scope.caller.label, prompt - cached, cached, output)

    def headers(self) -> list[tuple[str, str]]:
        """What is left of the limits, in the client's dialect; empty where there are none."""
        return self._gate.headers(self._scope, self._anthropic)
