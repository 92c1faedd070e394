"""Where it is kept what is used of limits: in this process (here), or in memory that all workers of a host share
(``shared_state.py``). Meters and budgets use either in the same way, and so the arithmetic is the same in both.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from enum import IntEnum
from typing import Protocol

from gateway.framework import Clock
from gateway.tenants.accounts import Account, Calendar
from gateway.tenants.limit_settings import BudgetSettings, LimitSettings


class Limit(IntEnum):
    """The limits of a meter, as numbers."""

    REQUESTS, TOKENS, CONCURRENT, TOKENS_IN_FLIGHT, QUEUED = range(5)


class Cells(Protocol):
    """Numbers by their place: a list, or a piece of shared memory."""

    def __len__(self) -> int: ...

    def __getitem__(self, at: int, /) -> float: ...

    def __setitem__(self, at: int, value: float, /) -> None: ...


class Counter(Protocol):
    """A count of what is under way now, by all who share it. Whole numbers: their sum does not depend on the order of
    additions, and comes back to exactly zero."""

    @property
    def value(self) -> int: ...

    def add(self, amount: int, /) -> None:
        """``amount`` more, of this process's; a negative one for what has ended here."""
        ...


class OwnCounter:
    """Of one process."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int) -> None:
        self.value += amount


class MeterPlace(Protocol):
    """What is used of the limits of a meter. ``requests``, ``tokens``: cells of a ``Bucket``. ``divided``: other hosts
    have parts of the limits."""

    @property
    def requests(self) -> Cells: ...
    @property
    def tokens(self) -> Cells: ...
    @property
    def concurrent(self) -> Counter: ...
    @property
    def tokens_in_flight(self) -> Counter: ...
    @property
    def queued(self) -> Counter: ...
    @property
    def divided(self) -> bool: ...

    def want(self, settings: LimitSettings) -> None:
        """These are the limits."""
        ...

    def part(self, limit: Limit, whole: int) -> float:
        """How much of a limit, which is ``whole`` in all, may be used of this place."""
        ...

    def even(self, whole: int) -> float:
        """The part of a limit that is this place's if all who have one want more; 0 where nobody else has one."""
        ...

    def elsewhere(self, limit: Limit) -> float:
        """How much of it others use, as far as is known here."""
        ...

    def waits(self, limit: Limit, more: float) -> None:
        """Someone waits for ``more``; a negative number: no more."""
        ...

    def lacks(self, limit: Limit, whole: int, used: float, more: float) -> bool:
        """Whether ``more`` than what is used has no room here, and may have elsewhere; that is asked for then, and soon
        if half of the part is in use."""
        ...

    def look(self) -> bool:
        """Before anything is read or begun. True: what is above has been replaced, with what is used."""
        ...


class Tally(Protocol):
    """What a tenant or a key has used, and what its requests under way are expected to use.

    ``open``: requests under way. ``tokens``, ``money``: what they are expected to spend of a budget, in tokens and in
    ``budgets.MONEY`` parts of the currency.
    """

    @property
    def open(self) -> Counter: ...
    @property
    def tokens(self) -> Counter: ...
    @property
    def money(self) -> Counter: ...

    def look(self) -> None:
        """Before a request begins."""
        ...

    def beyond(self, budget: BudgetSettings, own: float) -> float:
        """What is to be added to what the account has spent of a budget, ``own``: what is not its to spend, since
        others have spent it or may. Infinite where nothing more may be spent; minus infinity where all may."""
        ...

    def elsewhere(self, budget: BudgetSettings) -> float:
        """What others have spent of it, as far as is known here."""
        ...

    def lacks(self, budget: BudgetSettings, own: float, in_flight: float) -> bool:
        """Whether a request would be refused only since others may spend what is left, and may not need it. It is asked
        for then, and soon if half of what this place may spend is used."""
        ...

    def read(self) -> Account:
        """As of today; not to be changed."""
        ...

    def spent(self, per: str, unit: str) -> float:
        """See ``Account.spent``."""
        ...

    def charge(self, prompt: int, cached: int, output: int, cost: float) -> None:
        """A request has ended, and used this."""
        ...


class State(Protocol):
    """All of it. What is read and changed in one step is so within ``with state``, which may be nested; there is no
    await in it."""

    def __enter__(self) -> object: ...

    def __exit__(self, *raised: object) -> None: ...

    def close(self) -> None:
        """Nothing is read or changed any more."""
        ...

    def meter(self, name: str, pattern: str) -> MeterPlace:
        """A place for the meter of the account ``name`` for the models of ``pattern``; asked for once by each process
        that has the meter."""
        ...

    def tally(self, name: str) -> Tally: ...

    def forget(self, name: str) -> None:
        """The account ``name`` may go."""
        ...

    @property
    def divided(self) -> bool:
        """Whether other hosts have parts of the limits, which one may wait for."""
        ...

    is_loaded: bool
    """Whether what was kept from before is in it."""

    async def told(self, patience: float) -> None:
        """Wait until parts of limits have changed, for so many seconds at most."""
        ...

    def leads(self) -> bool:
        """Whether this process is the one of those who share it that saves it now and then."""
        ...

    def hold_file(self) -> None:
        """Wait until no other process saves it: a thread's work."""
        ...

    def release_file(self) -> None: ...

    def names(self) -> Set[str]:
        """Of all accounts."""
        ...

    def put(self, name: str, account: Account) -> None:
        """What was kept of ``name`` from before."""
        ...

    def take_changed(self) -> dict[str, Account]:
        """The accounts that have changed since the last call."""
        ...

    def put_back(self, names: Collection[str]) -> None:
        """These are to be among the next changed ones, too: they could not be saved."""
        ...


class OwnMeterPlace:
    """In this process. ``size``: of a bucket's cells. ``share``: the part of each limit that may be used."""

    __slots__ = ("_share", "concurrent", "divided", "queued", "requests", "tokens", "tokens_in_flight")

    def __init__(self, size: int, share: float = 1.0) -> None:
        self.divided = False
        self.requests: Cells = [0.0] * size
        self.tokens: Cells = [0.0] * size
        self.concurrent: Counter = OwnCounter()
        self.tokens_in_flight: Counter = OwnCounter()
        self.queued: Counter = OwnCounter()
        self._share = share

    def look(self) -> bool:
        return False

    def want(self, settings: LimitSettings) -> None:
        """All of it is here."""

    def part(self, limit: Limit, whole: int) -> float:
        return whole if self._share == 1.0 else max(1, int(whole * self._share))

    def even(self, whole: int) -> float:
        return 0.0

    def elsewhere(self, limit: Limit) -> float:
        return 0.0

    def waits(self, limit: Limit, more: float) -> None:
        """There is nothing to wait for."""

    def lacks(self, limit: Limit, whole: int, used: float, more: float) -> bool:
        return False


class OwnTally:
    """In this process."""

    __slots__ = ("_account", "_calendar", "_changed", "_name", "_share", "money", "open", "tokens")

    def __init__(self, name: str, calendar: Calendar, changed: set[str], account: Account, share: float = 1.0) -> None:
        self._name = name
        self._calendar = calendar
        self._changed = changed
        self._account = account
        self.open: Counter = OwnCounter()
        self.tokens: Counter = OwnCounter()
        self.money: Counter = OwnCounter()
        self._share = share

    def look(self) -> None:
        """There is nothing to see to."""

    def beyond(self, budget: BudgetSettings, own: float) -> float:
        return budget.amount * (1.0 - self._share)

    def elsewhere(self, budget: BudgetSettings) -> float:
        return 0.0

    def lacks(self, budget: BudgetSettings, own: float, in_flight: float) -> bool:
        return False

    def read(self) -> Account:
        self._calendar.look()
        self._account.roll(self._calendar.day)
        return self._account

    def spent(self, per: str, unit: str) -> float:
        return self.read().spent(per, unit)

    def put(self, account: Account) -> None:
        """It is this from now on."""
        self._account = account

    def charge(self, prompt: int, cached: int, output: int, cost: float) -> None:
        self.read().add(prompt, cached, output, cost)
        self._changed.add(self._name)


class OwnState:
    """In this process. ``size``: of a bucket's cells."""

    def __init__(self, clock: Clock, size: int) -> None:
        self._calendar = Calendar(clock)
        self._size = size
        self._tallies: dict[str, OwnTally] = {}
        self._changed: set[str] = set()
        self.is_loaded = False
        self.divided = False

    def __enter__(self) -> None:
        """Nothing else runs until an await."""

    def __exit__(self, *raised: object) -> None:
        pass

    def close(self) -> None:
        pass

    def meter(self, name: str, pattern: str) -> MeterPlace:
        return OwnMeterPlace(self._size)

    def tally(self, name: str) -> Tally:
        return self._tallies.get(name) or self._make(name, Account())

    def forget(self, name: str) -> None:
        self._tallies.pop(name, None)

    async def told(self, patience: float) -> None:
        """There are no parts."""

    def leads(self) -> bool:
        return True

    def hold_file(self) -> None:
        """It has no other process."""

    def release_file(self) -> None:
        pass

    def names(self) -> Set[str]:
        return self._tallies.keys()

    def put(self, name: str, account: Account) -> None:
        if (tally := self._tallies.get(name)) is None:
            self._make(name, account)
        else:  # requests hold it
            tally.put(account)

    def take_changed(self) -> dict[str, Account]:
        changed = {name: self._tallies[name].read() for name in self._changed if name in self._tallies}
        self._changed.clear()
        return changed

    def put_back(self, names: Collection[str]) -> None:
        self._changed.update(names)

    def _make(self, name: str, account: Account) -> OwnTally:
        made = self._tallies[name] = OwnTally(name, self._calendar, self._changed, account)
        return made
