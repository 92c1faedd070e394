"""The requests of this worker that wait in the queue of another, which leads the host.

Each has one question open until it is answered. When another worker leads, all that are open are asked there, with the
time at which they came; what is answered by any other than the lead, or under an old number, is answered in vain. So
none is lost and none is placed twice, whatever dies and in whatever order workers hear of it: where a request is placed
is decided here, in one step. No socket and no loop in here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.flow.questions import Ended, Forget, Grant, Leave, Message, Question, Refusal, Room, Taken, Waits


class Asker(Protocol):
    """A request of this worker that waits."""

    def question(self, number: int) -> Question:
        """What it is now."""

    def granted(self, legs: Sequence[tuple[str, str]], waited_for: str, number: int) -> bool:
        """Book it there, where that is possible still; False: it is not, so that it is asked anew. Raises what is
        wrong with the request itself."""

    def refused(self, error: Exception) -> None:
        """By the lead, or since it failed. Does not raise."""

    def comes_home(self) -> None:
        """This worker leads now: it is to wait here. Does not raise."""


class Asking:
    """``lead``: the number of the worker that leads; None: this one does."""

    def __init__(self, tell: Callable[[int, Message], object]) -> None:
        self.lead: int | None = None
        self._tell = tell
        self._open: dict[int, Asker] = {}
        self._numbers: dict[Asker, int] = {}
        self._number = 0
        self._first = 1  # of this lead
        self._waits: dict[int, set[str]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def anybody_waits(self, model: str) -> bool:
        """For an engine of it, at the lead. False while this worker leads: it sees for itself."""
        waits = self._waits
        return bool(waits) and self.lead is not None and model in waits.get(self.lead, ())

    def ask(self, asker: Asker) -> None:
        """It waits from now on, until it is granted or refused, or leaves."""
        assert self.lead is not None, "who leads asks nobody"
        self._number = number = self._number + 1
        try:
            message = asker.question(number)
        except Exception as error:
            asker.refused(error)
            return
        self._open[number] = asker
        self._numbers[asker] = number
        self._tell(self.lead, message)

    def leave(self, asker: Asker) -> bool:
        """Its client is gone, or it waits here from now on. False: it has no question open."""
        number = self._numbers.pop(asker, None)
        if number is None:
            return False
        del self._open[number]
        self._say(number, Leave(number))
        return True

    def ended(self, number: int, output: float, computed: int | None) -> None:
        """What was granted under this number is over."""
        self._say(number, Ended(number, output, computed))

    def room(self, message: Room) -> None:
        """Something has made room where somebody waits."""
        if self.lead is not None and self.anybody_waits(message.model):
            self._tell(self.lead, message)

    # What happens

    def heard(self, worker: int, message: Message) -> None:
        if isinstance(message, Waits):
            models = self._waits.setdefault(worker, set())
            (models.add if message.anybody else models.discard)(message.model)
            if not models:
                del self._waits[worker]
        elif isinstance(message, Grant | Refusal) and worker == self.lead:
            asker = self._open.pop(message.number, None)
            if asker is None:
                return
            del self._numbers[asker]
            if isinstance(message, Refusal):
                asker.refused(message.error())
            else:
                self._granted(asker, message)

    def left(self, workers: frozenset[int]) -> None:
        """They are gone, or were cut off: nothing is known of who waits there."""
        for number in workers:
            self._waits.pop(number, None)

    def changed(self, lead: int | None, left: frozenset[int] = frozenset()) -> None:
        """``lead`` leads now, or has missed what it was told: ask it all that is open. ``left``: workers that are gone,
        or were cut off."""
        self.left(left)
        before, self.lead = self.lead, lead
        if before is not None and before != lead and before not in left:
            self._tell(before, Forget())
        self._first = self._number + 1
        askers = list(self._open.values())
        self._open.clear()
        self._numbers.clear()
        for asker in askers:
            if lead is None:
                asker.comes_home()
            else:
                self.ask(asker)

    def _granted(self, asker: Asker, grant: Grant) -> None:
        try:
            placed = asker.granted(grant.legs, grant.waited_for, grant.number)
        except Exception as error:
            self._say(grant.number, Leave(grant.number))
            asker.refused(error)
            return
        if placed:
            self._say(grant.number, Taken(grant.number))
        else:
            self._say(grant.number, Leave(grant.number))
            self.ask(asker)

    def _say(self, number: int, message: Message) -> None:
        """To the lead, if it was asked under this number."""
        if self.lead is not None and number >= self._first:
            self._tell(self.lead, message)
