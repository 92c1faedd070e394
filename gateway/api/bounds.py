"""Limits on what a JSON body may hold, counted in its bytes before it is parsed.

The parser holds the GIL, and the whole gateway waits meanwhile: the limits are what one iteration of the loop may take,
some tens of milliseconds, including all work on a prompt before it goes to a thread. The content of strings is not
counted: a prompt may be two megabytes of JSON, or of code.
"""

from __future__ import annotations

from gateway.errors import BodyTooLarge

MAX_CONTAINERS = 20_000
"""Objects and lists. A thousand turns of an agent with a tool call each have 7,000; a million take a second or more."""
MAX_STRINGS = 200_000
"""Strings, keys of objects included: a chat of ten thousand messages with a ``logit_bias`` for a whole vocabulary. They
take 10 to 50 ms to parse, and 12 MB."""
MAX_VALUES = 2_000_000
"""Commas: two prompts of a million token ids, which take 0.1 s to parse, and 70 MB meanwhile."""

FIRST = 2 * 1024 * 1024
"""Bytes that are counted first: a body made to block the loop mostly exceeds a limit within them."""


def check(raw: bytes) -> None:
    """Check a body that has not been parsed; it need not be JSON.

    A first pass counts all bytes of a kind, in half a millisecond a megabyte. Only if these are too many are the
    strings removed, which takes up to five milliseconds a megabyte and two copies of the body.

    Raises:
        BodyTooLarge: it holds more than ``MAX_CONTAINERS``, ``MAX_STRINGS`` or ``MAX_VALUES``.
    """
    if len(raw) <= MAX_CONTAINERS or _few(raw):
        return
    if len(raw) > FIRST:
        _look(raw[:FIRST])
    _look(raw)


def weigh(raw: bytes) -> tuple[int, int, int]:
    """How many containers, quotes and commas there are, the content of strings included. None is counted beyond its
    limit."""
    return _containers(raw), _count(raw, b'"', 2 * MAX_STRINGS), _count(raw, b",", MAX_VALUES)


def sum_of(one: tuple[int, int, int], other: tuple[int, int, int]) -> tuple[int, int, int]:
    """What two parts of a body weigh together."""
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def is_light(weight: tuple[int, int, int]) -> bool:
    """Whether a body of this weight is within the limits, whatever its strings contain."""
    return weight[0] <= MAX_CONTAINERS and weight[1] <= 2 * MAX_STRINGS and weight[2] <= MAX_VALUES


def _look(raw: bytes) -> None:
    """Count outside strings. ``raw`` may be a leading part: it never holds more than the whole."""
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")  # from here on, a quote begins or ends a string
    if _count(plain, b'"', 2 * MAX_STRINGS) > 2 * MAX_STRINGS:
        raise BodyTooLarge(f"The body holds more than {MAX_STRINGS} strings: too many for one request.")
    outside = b"".join(plain.split(b'"')[::2])
    if _containers(outside) > MAX_CONTAINERS:
        raise BodyTooLarge(f"The body holds more than {MAX_CONTAINERS} objects and lists: too many for one request.")
    if _count(outside, b",", MAX_VALUES) > MAX_VALUES:
        raise BodyTooLarge(f"The body holds more than {MAX_VALUES} values: too many for one request.")


def _few(raw: bytes) -> bool:
    """Whether no limit is exceeded even if the content of strings is counted."""
    return (
        _containers(raw) <= MAX_CONTAINERS
        and (len(raw) <= 2 * MAX_STRINGS or _count(raw, b'"', 2 * MAX_STRINGS) <= 2 * MAX_STRINGS)
        and (len(raw) <= MAX_VALUES or _count(raw, b",", MAX_VALUES) <= MAX_VALUES)
    )


def _containers(raw: bytes) -> int:
    return _count(raw, b"{", MAX_CONTAINERS) + _count(raw, b"[", MAX_CONTAINERS)


def _count(raw: bytes, byte: bytes, most: int) -> int:
    """How often ``byte`` occurs, up to ``most + 1``. To remove it and compare lengths takes a third of the time of
    ``bytes.count``, which checks byte after byte up to Python 3.12."""
    return len(raw) - len(raw.replace(byte, b"", most + 1))
