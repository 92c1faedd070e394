"""A ``multipart/form-data`` body (RFC 7578) that is forwarded as it came, or with parts replaced or left out.

Rules: parts are found as byte ranges and never copied or decoded; each range that is kept is forwarded byte for byte. A
form that two parsers could read in two ways (an odd ``Content-Disposition``, folded headers, a preamble) is refused, so
that an engine never sees a field that the gateway has missed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.api.content_type import form_boundary, form_type
from gateway.api.field_filter import sensitive, strip_form_value
from gateway.api.settings import PassThroughSettings
from gateway.errors import ClientError

MAX_PARTS = 256
"""Far more than the fields of any route; each part costs some microseconds of the loop."""
MAX_PART_HEAD = 16 * 1024
"""Bytes of one part's headers; the limit that HTTP servers have for a request's own."""

_DISPOSITION = re.compile(
    rb"""form-data(?:\s*;\s*(?:name=(?:"[^"\\\r\n]*"|[\w.\-\[\]]+)|filename="(?:[^"\\\r\n]|\\[^\r\n])*"|filename\*=[^;"\s]+))+\s*""",
    re.IGNORECASE,
)
_NAME = re.compile(rb"""(?:^|;)\s*name=(?:"([^"]*)"|([\w.\-\[\]]+))""", re.IGNORECASE)
_FILENAME = re.compile(rb"""filename\*?=(?:"(?:[^"\\]|\\.)*"|[^;"\s]+)""", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Part:
    """One field: offsets into the body. ``start``..``end`` is the whole part, from its delimiter to the next one."""

    name: str
    start: int
    content: int
    content_end: int
    end: int


class MultipartBody:
    """A form. Fields that may not pass are left out; ``encode`` puts the model's name into each ``model`` part.

    ``content_type``: the header for the engine, written anew with the boundary that was read here.
    """

    def __init__(self, raw: bytes, content_type: str, settings: PassThroughSettings) -> None:
        """Find the parts of ``raw``.

        Raises:
            ClientError: no boundary, or not a well-formed form.
        """
        boundary = form_boundary(content_type)
        self.content_type = form_type(boundary)
        self._raw = raw
        self._parts, self._tail = _split(raw, b"--" + boundary.encode("ascii"))
        self._replaced: dict[int, bytes | None] = {}
        for part in self._parts:
            if sensitive(part.name):
                self._replaced[part.start] = strip_form_value(self._value(part), part.name, settings)

    def find(self, name: str) -> memoryview | None:
        """The content of the last field of this name, which is the one that servers take; None if there is none."""
        for part in reversed(self._parts):
            if part.name == name and part.start not in self._replaced:
                return memoryview(self._raw)[part.content : part.content_end]
        return None

    def value(self, name: str) -> bytes | None:
        """As ``find``, copied."""
        found = self.find(name)
        return None if found is None else bytes(found)

    def encode(self, model: str) -> bytes:
        name = model.encode()
        replaced = dict(self._replaced)
        for part in self._parts:
            if part.name == "model" and self._value(part) != name:
                replaced[part.start] = name
        if not replaced:
            return self._raw
        return b"".join(self._pieces(replaced))

    def _pieces(self, replaced: dict[int, bytes | None]) -> Iterator[bytes]:
        for part in self._parts:
            if part.start not in replaced:
                yield self._raw[part.start : part.end]
            elif (value := replaced[part.start]) is not None:
                yield self._raw[part.start : part.content]
                yield value
                yield self._raw[part.content_end : part.end]
        yield self._raw[self._tail :]

    def _value(self, part: Part) -> bytes:
        return self._raw[part.content : part.content_end]


def _split(raw: bytes, delimiter: bytes) -> tuple[list[Part], int]:
    """The parts, and the offset of the closing delimiter."""
    if not raw.startswith(delimiter):
        raise ClientError("the form does not begin with its boundary")
    parts: list[Part] = []
    start = 0
    while True:
        after = start + len(delimiter)
        if raw.startswith(b"--", after):
            return parts, start
        if not raw.startswith(b"\r\n", after):
            raise ClientError(f"malformed form: a boundary is not followed by a line end at byte {after}")
        if len(parts) == MAX_PARTS:
            raise ClientError(f"the form has more than {MAX_PARTS} fields")
        end = raw.find(b"\r\n" + delimiter, after)
        if end < 0:
            raise ClientError("the form is truncated: its closing boundary is missing")
        parts.append(_part(raw, start, after + 2, end))
        start = end + 2


def _part(raw: bytes, start: int, head: int, end: int) -> Part:
    blank = raw.find(b"\r\n\r\n", head, min(end, head + MAX_PART_HEAD))
    if blank < 0:
        raise ClientError(f"malformed form: a field's headers do not end at byte {head}")
    found = None
    for line in raw[head:blank].split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip() or b"\n" in line or b"\r" in line:
            raise ClientError(f"malformed form: an odd header at byte {head}")
        if name.lower() == b"content-disposition":
            if found is not None:
                raise ClientError(f"malformed form: two Content-Disposition headers at byte {head}")
            found = value.strip()
    if found is None or _DISPOSITION.fullmatch(found) is None:
        raise ClientError(f"malformed form: Content-Disposition of the field at byte {head}")
    names = _NAME.findall(_FILENAME.sub(b"", found))
    if len(names) != 1:
        raise ClientError(f"malformed form: the field at byte {head} needs one name")
    quoted, plain = names[0]
    return Part((quoted or plain).decode("latin-1"), start, blank + 4, end, end + 2)
