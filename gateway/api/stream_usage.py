"""Requests a stream's usage on behalf of clients that did not, and removes it from their streams.

``stream_options.include_usage`` changes a stream of vLLM 0.32 (``entrypoints/openai``) in two ways. One more event
without choices reports the usage, before ``[DONE]``. And that event carries the ``system_fingerprint``, which is
otherwise the last field of each event that ends a choice. ``/v1/responses`` and ``/v1/messages`` always report their
usage. Other engines may report it in several such events.

Rules: a client gets the same bytes as without the gateway, however the stream is split. An event with neither a usage
nor a finish reason costs two searches in C and is not parsed. Only two things are held back: an incomplete event, which
is of no use to a client, and the event that ends the only choice, until the next event has brought the fingerprint.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from gateway.api.field_filter import Fields
from gateway.api.prompts import FALSE, NULL, TRUE
from gateway.framework import Kind

KINDS = frozenset({Kind.CHAT, Kind.COMPLETION})
"""Routes whose streams report their usage only on request."""


LONGEST = 256 * 1024
"""A larger event (in bytes) is forwarded unread. An event with a usage has less than 4 KB. An event that ends a choice
has more only with the log-probabilities of hundreds of tokens."""

REFUSALS = frozenset({400, 422})
"""Statuses with which an engine refuses an unknown field: 400 by vLLM and SGLang, 422 by FastAPI itself."""

_ENDS = (b"\n\n", b"\n\r\n")
_BLANK = re.compile(rb"\n\r?\n")
"""The pattern begins with a fixed byte: a search for that is 25 times as fast as for an optional one."""
_OVERLAP = 2
"""The most bytes of ``_BLANK`` that may be at the end of the part before."""

_FINISH = b'"finish_reason":"'
"""As vLLM writes it, without a blank. Inside a string the second quote would be escaped."""
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_DATA = re.compile(rb"^data: ?(.*?)\r?$", re.MULTILINE)
_FINGERPRINT = "system_fingerprint"

_FIELDS = msgspec.json.Decoder(Fields)


def include_usage(fields: Fields) -> Fields | None:
    """The ``stream_options`` that make the stream of a body with these ``fields`` report its usage at its end.

    None: the client requests it itself, or its options are the engine's to judge. Other options stay, but for
    ``continuous_usage_stats``: without ``include_usage`` vLLM ignores it, and with it every event would have a usage.
    """
    given = fields.get("stream_options", NULL)
    try:
        options = {} if given == NULL else _FIELDS.decode(given)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if options.get("include_usage", FALSE) not in (NULL, FALSE):
        return None
    if "continuous_usage_stats" in options:
        options["continuous_usage_stats"] = FALSE
    return {**options, "include_usage": TRUE}


def refuses(text: bytes) -> bool:
    """Whether an engine's refusal is about the options."""
    return b"stream_options" in text or b"include_usage" in text


class UsageRemover:
    """Forwards one stream to a client that did not request its usage.

    ``single``: it has one choice; else the events that end its choices cannot wait for the stream's end, and get the
    engine's known ``fingerprint`` (JSON; empty: none). ``learn``: called with the fingerprint that came.
    """

    __slots__ = ("_ending", "_fingerprint", "_learn", "_passed", "_reported", "_rest", "_single", "_through")

    def __init__(self, *, single: bool, fingerprint: bytes, learn: Callable[[bytes], None]) -> None:
        self._single = single
        self._fingerprint = fingerprint
        self._learn = learn
        self._ending = b""  # the event that ends the choice, held back
        self._rest = b""  # the beginning of an incomplete event, of which ``_passed`` bytes were forwarded
        self._passed = 0
        self._reported = False  # the usage, and with it the fingerprint
        self._through = False  # whatever comes passes

    def feed(self, data: bytes) -> bytes:
        """What the client gets for the next bytes; may be empty."""
        if self._through:
            return data
        if (
            data.endswith(_ENDS)
            and not self._rest
            and not self._ending
            and ((at := data.find(b'"usage"')) < 0 or not _USAGE.search(data, at))
            and data.find(_FINISH) < 0
        ):
            return data
        return self._cut(data)

    def end(self) -> bytes:
        """The stream has ended, completely or not: returns the bytes that were held back."""
        self._through = True
        held, self._ending = self._released() + self._rest[self._passed :], b""
        self._rest, self._passed = b"", 0
        return held

    def _cut(self, data: bytes) -> bytes:
        """Handle event by event."""
        text = self._rest + data
        out: list[bytes] = []
        at = 0
        for blank in _BLANK.finditer(text, max(0, len(self._rest) - _OVERLAP)):
            event, at = text[at : blank.end()], blank.end()
            out.append(event[self._passed :] if self._passed else self._event(event))
            self._passed = 0
        self._rest = text[at:]
        if self._through or self._passed or len(self._rest) > LONGEST:
            out += (self._released(), self._rest[self._passed :])
            self._rest = b"" if self._through else self._rest[-_OVERLAP:]
            self._passed = len(self._rest)
        return b"".join(out)

    def _event(self, event: bytes) -> bytes:
        """The client's bytes for a whole event, and for the event that was held back before it."""
        if self._through or len(event) > LONGEST:
            return self._released() + event
        if not self._ending and _FINISH not in event and not _USAGE.search(event):
            return event
        data = _DATA.findall(event)
        if not data:  # a comment
            return event
        fields = _decoded(b"\n".join(data)) if _USAGE.search(event) else {}
        has_usage = fields.get("usage", b"").startswith(b"{")
        if has_usage and fields.get("choices") == b"[]":
            if not self._reported:
                self._reported = True
                self._fingerprint = fields.get(_FINGERPRINT, b"").removeprefix(b"null")
                self._learn(self._fingerprint)
            return self._released()
        if has_usage:  # the engine reports it in any case (vLLM: --enable-force-include-usage)
            self._through = True
            return self._released() + event
        if _FINISH not in event:
            return self._released() + event
        if not self._single or self._reported:
            return self._released() + _stamped(event, self._fingerprint)
        held, self._ending = self._released(), event
        return held

    def _released(self) -> bytes:
        ending, self._ending = self._ending, b""
        return _stamped(ending, self._fingerprint)


def _stamped(event: bytes, fingerprint: bytes) -> bytes:
    """``event`` with the fingerprint as its last field, if it has none."""
    if not event or not fingerprint or _FINGERPRINT in _decoded(b"\n".join(_DATA.findall(event))):
        return event
    end = event.rfind(b"}")
    return event[:end] + b',"%b":' % _FINGERPRINT.encode() + fingerprint + event[end:]


def _decoded(payload: bytes) -> dict[str, bytes]:
    try:
        return {name: bytes(value) for name, value in _FIELDS.decode(payload).items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
