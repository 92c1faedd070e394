"""What is known of the other replicas: who they are, their rows, how old these are, and how much cannot be seen yet.

A replica that has work says something at least every ``messages.STEADY`` seconds, changes or not, so silence means that
its rows are old. Old rows mislead more than none: all who see them choose the same engine. So they fade soon, and what
they no longer show is seen in the engines' scrapes. A replica that says nothing for longer is gone, and its work with
it.

Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from gateway.fleet.load.others import NOTHING, Row
from gateway.fleet.load.pace import Pace, booked_between
from gateway.sharing.messages import Bye, Dropped, Hello, Loads, Message, is_idle, read

FRESH = 0.1
"""Seconds of silence from which rows fade: they are a tenth of a second old then, which costs as much as they give."""

HALF_LIFE = 0.3
"""Seconds in which fading rows lose half: a second after the last word an eighth is left, after three nothing."""

STALE, GONE = 1.0, 3.0
"""Seconds of silence after which a replica counts as stale, and from which on it is forgotten."""

SCRAPED = 1.0
"""Seconds after which the engines' scrapes show a booking of others, as load of strangers."""

MOST_DEPARTED = 1024
"""Replicas that are gone and are remembered, so that what was under way, or is sent again, does not bring them back."""

NEVER = 1 << 62
"""A sequence that no message has: nothing more is heard of an incarnation that said goodbye."""


class Table(Protocol):
    """Where the rows go: ``LoadTable``."""

    def write(self, writer: int, name: str, row: Row) -> bool: ...

    def clear(self, writer: int) -> None: ...


class Seen(NamedTuple):
    """A replica, for people. ``silent``: seconds since its last word. ``rate``: its bookings per second, about."""

    replica: str
    place: str
    state: str
    silent: float
    rate: float
    endpoints: int


class Peer:
    """Another replica. ``rows``: of its endpoints that have work, with times of this host. ``heard``: when its last
    word came. ``faded``: its rows in the table are less than it said."""

    __slots__ = ("faded", "heard", "incarnation", "pace", "place", "rows", "sequence", "writer")

    def __init__(self, incarnation: int, writer: int, now: float) -> None:
        self.incarnation = incarnation
        self.sequence = 0
        self.writer = writer
        self.heard = now
        self.place = ""
        self.rows: dict[str, Row] = {}
        self.pace = Pace()
        self.faded = False


class Peers:
    """``own``: this replica, whose messages are ignored. ``writers``: numbers of the table that others' rows may have.

    Where a method takes ``now``, it is Clock.monotonic().
    """

    def __init__(self, table: Table, own: str, writers: Iterable[int]) -> None:
        self._table = table
        self._own = own
        self._free = sorted(writers, reverse=True)
        self._peers: dict[str, Peer] = {}
        self._departed: dict[str, tuple[int, int]] = {}
        for writer in self._free:  # another process may have led before this one
            table.clear(writer)

    def __len__(self) -> int:
        return len(self._peers)

    def take(self, message: Hello | Loads | Bye, now: float) -> bool:
        """Returns whether rows of its sender are missing here, so that it should tell all of them. Raises Dropped:
        ``old``, or ``replicas`` where there are too many."""
        if message.replica == self._own:
            return False
        if isinstance(message, Bye):
            self._leave(message)
            return False
        peer = self._peers.get(message.replica)
        if peer is None or peer.incarnation != message.incarnation:
            peer = self._join(message, now)
        missed = message.sequence != peer.sequence + 1
        if message.sequence <= peer.sequence:
            raise Dropped("old")
        peer.sequence, peer.heard = message.sequence, now
        if isinstance(message, Hello):
            peer.place = message.place
            return False  # all its rows follow
        if peer.faded:
            self._restore(peer)
        self._read(peer, message, now)
        return missed and not message.whole

    def look(self, now: float) -> None:
        """Let the rows of silent replicas fade, and forget those that are silent for long. Several times a second."""
        for replica, peer in list(self._peers.items()):
            silent = now - peer.heard
            if silent >= GONE:
                self._forget(replica)
            elif silent > FRESH and peer.rows:
                part = 0.5 ** ((silent - FRESH) / HALF_LIFE)
                peer.faded = True
                for name, row in peer.rows.items():
                    self._table.write(peer.writer, name, faded(row, part))

    def clear(self) -> None:
        """Forget all."""
        for replica in list(self._peers):
            self._forget(replica)

    def unseen(self, now: float, delay: float) -> float:
        """Bookings of the others that are not in the table, about. ``delay``: seconds, of those who talk."""
        total = 0.0
        for peer in self._peers.values():
            silent = now - peer.heard
            # Who has no work says nothing for a second, and who had some would have said so.
            lost = silent > FRESH and (peer.rows or silent > STALE)
            total += peer.pace.rate * (min(silent, SCRAPED) if lost else delay)
        return total

    @property
    def rate(self) -> float:
        """Bookings of all others together, a second."""
        return sum(peer.pace.rate for peer in self._peers.values())

    def states(self, now: float) -> dict[str, int]:
        """How many replicas are ``fresh`` and ``stale``."""
        stale = sum(now - peer.heard > STALE for peer in self._peers.values())
        return {"fresh": len(self._peers) - stale, "stale": stale}

    def seen(self, now: float) -> list[Seen]:
        return [
            Seen(
                *(replica, peer.place, "stale" if now - peer.heard > STALE else "fresh"),
                *(now - peer.heard, peer.pace.rate, len(peer.rows)),
            )
            for replica, peer in sorted(self._peers.items())
        ]

    def _join(self, message: Message, now: float) -> Peer:
        """A new replica, or another process that speaks for a known one."""
        replica, incarnation = message.replica, message.incarnation
        if (incarnation, message.sequence) <= self._departed.get(replica, (-1, 0)):
            raise Dropped("old")
        if (before := self._peers.get(replica)) is not None:
            if incarnation < before.incarnation:
                raise Dropped("old")
            self._forget(replica)
        if not self._free:
            raise Dropped("replicas")
        peer = self._peers[replica] = Peer(incarnation, self._free.pop(), now)
        return peer

    def _leave(self, message: Bye) -> None:
        peer = self._peers.get(message.replica)
        if peer is None:
            return
        if (message.incarnation, message.sequence) <= (peer.incarnation, peer.sequence):
            raise Dropped("old")
        peer.incarnation, peer.sequence = message.incarnation, NEVER
        self._forget(message.replica)

    def _forget(self, replica: str) -> None:
        peer = self._peers.pop(replica)
        self._table.clear(peer.writer)
        self._free.append(peer.writer)
        self._departed[replica] = peer.incarnation, peer.sequence
        if len(self._departed) > MOST_DEPARTED:
            del self._departed[next(iter(self._departed))]

    def _restore(self, peer: Peer) -> None:
        peer.faded = False
        for name, row in peer.rows.items():
            self._table.write(peer.writer, name, row)

    def _read(self, peer: Peer, message: Loads, now: float) -> None:
        rows, writer, whole, write, booked = peer.rows, peer.writer, message.whole, self._table.write, 0
        for load in message.rows:
            name, row = load.name, read(load, now)
            before = rows.get(name, NOTHING)
            if whole and unchanged(before, row):  # its times would be another moment's by what the way took
                continue
            if not write(writer, name, row):
                continue  # none of our engines: no booking of it is missing here
            if before is not NOTHING:
                booked += booked_between(before, row)
            elif not whole:
                booked += row[0]
            if row[0] or not is_idle(row, now):
                rows[name] = row
            else:
                rows.pop(name, None)
        if whole:
            for name in rows.keys() - {load.name for load in message.rows}:
                self._table.write(peer.writer, name, NOTHING)
                del rows[name]
        peer.pace.add(booked, now)


def unchanged(before: Row, row: Row) -> bool:
    """Whether two rows differ in nothing but what the clock moves."""
    return (
        before[:4] == row[:4]
        and before[10:] == row[10:]
        and before.first_tokens == row.first_tokens
        and abs(before.first_booked - row.first_booked) < FRESH
        and abs(before.ended - row.ended) < FRESH
        and before.share == row.share
    )


def faded(row: Row, part: float) -> Row:
    """``part`` of what is open in a row. What has ended stays."""
    return row._replace(
        requests=round(row.requests * part),
        kv_tokens=round(row.kv_tokens * part),
        prefill_tokens=round(row.prefill_tokens * part),
        prefill_attention=row.prefill_attention * part,
        first_tokens=round(row.first_tokens * part),
        first_seconds=row.first_seconds * part,
        share=row.share * part,
    )
