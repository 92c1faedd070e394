"""What replicas tell each other: arrays in MessagePack, which grow at their end only.

A later version adds elements at the end of an array: who does not know them ignores them, and whoever misses them takes
their defaults. So all of one ``VERSION`` understand each other's common part; of another one nothing is taken. Whatever
arrives may be wrong, old or hostile: it is bounded before it is read, and its figures are clamped.

No time crosses hosts, since their clocks differ: ages do. No number of a slot or block does either: names do.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp
from typing import Annotated, TypeAlias

import msgspec

from gateway.fleet.load.others import Row
from gateway.framework.cost import LATELY

VERSION = 1
"""Raised when what there is changes its meaning, and not when something is added."""

MOST_BYTES = 2 << 20
"""Of a message. ``MOST_ROWS`` rows with long names are 200 KB, and ``MOST_CHARGES`` of tenants with the longest names
1.1 MB."""

MOST_ROWS = 1024
"""Of a message, one an endpoint. A table has as many slots; a larger fleet is divided by ``sharing.name``."""

MOST_CHARGES = 1024
"""Of a message, one a tenant and band."""

STEADY, WHOLE = 0.05, 1.0
"""Seconds within which a replica with work says something, be it that nothing has changed; and after which it tells all
rows again, so that whatever was lost heals."""

MOST = 1e15
"""The largest figure: the attention of ten thousand prompts of a million tokens each. Larger ones are cut to it."""

LEAST_SHARE = 1e-3
"""Of an engine's last seconds: a prefill share below it changes no decision."""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=256)]


class Dropped(Exception):
    """A message that is not taken. Its text is the reason, a word."""


class Load(msgspec.Struct, array_like=True, frozen=True):
    """One endpoint's row of a replica, with ages in seconds in place of times; see ``Row``."""

    name: Name
    requests: float = 0
    kv_tokens: float = 0
    prefill_tokens: float = 0
    prefill_attention: float = 0.0
    first_booked: float = 0.0
    first_tokens: float = 0
    first_seconds: float = 0.0
    ended: float = 0.0
    share: float = 0.0
    share_at: float = 0.0
    prefilled: float = 0.0
    settled: float = 0
    settled_tokens: float = 0


class Charged(msgspec.Struct, array_like=True, frozen=True):
    """What the queue of ``model`` has charged a tenant in a band since it was told last: see ``framework.Order``."""

    model: Name
    band: int
    tenant: Name
    amount: float


class Message(msgspec.Struct, array_like=True, frozen=True):
    """What each has, and no more ever, since the kinds grow behind it. ``replica``: who says it: a host's workers
    together are one. ``incarnation``: grows each time that another process speaks for it. ``sequence``: grows with each
    message of one incarnation."""

    version: Count
    replica: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    incarnation: Count
    sequence: Annotated[int, msgspec.Meta(ge=1, lt=1 << 62)]


class Hello(Message, frozen=True, tag="hello"):
    """A replica begins, or has missed something. ``asks``: the others shall tell all their rows. ``place``: its host
    and port, for people."""

    asks: bool = True
    place: Name = ""


class Loads(Message, frozen=True, tag="loads"):
    """Rows that have changed. ``whole``: all that are not zero, so that any other is zero. ``charged``: by the queues,
    in addition to what was told before; what is lost of it matters little."""

    whole: bool = False
    rows: Annotated[tuple[Load, ...], msgspec.Meta(max_length=MOST_ROWS)] = ()
    charged: Annotated[tuple[Charged, ...], msgspec.Meta(max_length=MOST_CHARGES)] = ()


class Bye(Message, frozen=True, tag="bye"):
    """A replica ends: its work has ended with it."""


class Head(msgspec.Struct, array_like=True):
    """As much of a message as all versions have in common."""

    kind: str
    version: int


Told: TypeAlias = Hello | Loads | Bye

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Told)
_HEAD = msgspec.msgpack.Decoder(Head)

WRONG = (ValueError, RecursionError)
"""What decoding may raise: msgspec's errors and wrong UTF-8 are a ValueError."""


def encode(message: Told) -> bytes:
    return _ENCODER.encode(message)


def decode(data: bytes) -> Told:
    """Raises Dropped: ``huge``, ``version`` or ``garbage``."""
    if len(data) > MOST_BYTES:
        raise Dropped("huge")
    try:
        message: Told = _DECODER.decode(data)
    except WRONG:
        try:
            other = _HEAD.decode(data).version != VERSION
        except WRONG:
            other = False
        raise Dropped("version" if other else "garbage") from None
    if message.version != VERSION:
        raise Dropped("version")
    return message


def written(rows: Iterable[tuple[str, Row]], now: float) -> tuple[Load, ...]:
    """Rows for a message that goes out at ``now``, Clock.monotonic()."""
    return tuple(
        [
            Load(name, *row[:4], now - row[4], row[5], row[6], now - row[7], row[8], now - row[9], *row[10:])
            for name, row in rows
        ]
    )


def read(load: Load, now: float) -> Row:
    """The row of a message that came at ``now``, Clock.monotonic(), of this host's clock, all figures within bounds.

    Thousands a second are read: the row is made without a call of Python's."""
    figures = msgspec.structs.astuple(load)[1:]
    if not (min(figures) >= 0.0 and sum(figures) <= MOST):  # neither is true of what is no number
        figures = tuple(map(bounded, figures))
    requests, kv, prefill, attention, first, tokens, seconds, ended, share, at, prefilled, settled, settled_kv = figures
    if not prefill:  # the rest is of prompts that wait
        attention = first = tokens = seconds = 0.0
    whole = int(requests), int(kv), int(prefill), attention, now - first, int(tokens), seconds
    rest = now - ended, share, now - at, prefilled, int(settled), int(settled_kv)
    return tuple.__new__(Row, whole + rest)


def bounded(figure: float) -> float:
    """0 to ``MOST``; what is no number is 0."""
    if figure > MOST:
        return MOST
    return figure if figure >= 0.0 else 0.0


def is_idle(row: Row, now: float) -> bool:
    """Whether nothing is booked there, nor was lately: such a row need not be told."""
    if row.requests or row.kv_tokens or row.prefill_tokens:
        return False
    return row.share * exp((row.share_at - now) / LATELY) < LEAST_SHARE
