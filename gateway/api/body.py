"""A JSON body that is forwarded as it came, or with a few top-level fields changed.

It is parsed once to ``dict[str, Raw]``: keys are resolved (escapes, duplicates), values stay the client's own bytes.
An edit costs one encode, about a memcpy. Without an edit the client's own bytes are forwarded.
"""

from __future__ import annotations

import re
from typing import Protocol

import msgspec

from gateway.api import bounds
from gateway.api.field_filter import SENSITIVE, Fields, no_object, strip
from gateway.api.lax import UTF8_OBJECT, as_utf8
from gateway.api.settings import PassThroughSettings
from gateway.errors import ClientError


class Body(Protocol):
    """A request's body, ready for any engine."""

    @property
    def content_type(self) -> str: ...

    def encode(self, model: str) -> bytes:
        """The body with ``model`` as the model's name: the name under which the chosen engine serves it."""
        ...


MAX_KEYS = 1000
"""Top-level fields: vLLM's largest request has about a hundred."""

TOO_DEEP = "the body is nested too deeply"

_LONE_SURROGATE = re.compile(
    rb"\\u[dD](?<!\\\\u[dD])(?:"  # after another backslash it is text
    rb"[89abAB][0-9a-fA-F]{2}(?=[^\\]|\\[^u]|\\u(?:[^dD]|[dD][^c-fC-F]))"
    rb"|[c-fC-F][0-9a-fA-F]{2}(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)
"""A lone surrogate: a first half without a second half after it, or a second half without a first. JSON can escape it,
and no encoding of Unicode can hold it."""
_PLACE = re.compile(r"\(byte (\d+)\)")
_NEAR = 18
"""Bytes of three escapes: two are read when the library stops at one of them."""

_FIELDS = msgspec.json.Decoder(Fields)
_ENCODER = msgspec.json.Encoder()


class JsonBody:
    """A JSON object. ``fields``: its top-level values as their own bytes, without those that may not pass.

    ``malformed``: the name of a removed field that an engine would have refused; empty if there is none.
    """

    content_type = "application/json"

    def __init__(self, raw: bytes, settings: PassThroughSettings) -> None:
        """Parse and strip ``raw``.

        Raises:
            ClientError: not UTF-8, not JSON, nested too deeply, not an object, or one of more than ``MAX_KEYS`` fields.
            BodyTooLarge: it holds more than ``bounds`` allow.
        """
        if not raw.startswith(UTF8_OBJECT):
            raw = as_utf8(raw)
        if len(raw) > bounds.MAX_CONTAINERS:  # a shorter one cannot hold too much
            bounds.check(raw)
        self._raw = raw
        self.malformed, self._changed = "", False
        try:
            if not raw.isascii():
                raw.decode()  # values stay undecoded below, and would pass with any bytes in them
            self.fields: Fields = _FIELDS.decode(raw)
            if len(self.fields) > MAX_KEYS:
                raise ClientError(f"The body has {len(self.fields)} fields; this gateway takes at most {MAX_KEYS}.")
            if not SENSITIVE.isdisjoint(self.fields):
                self.malformed = no_object(self.fields)
                self._changed = strip(self.fields, settings)
        except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
            raise _refusal(raw, error) from None
        self._model = self.fields.get("model")

    def lengthen(self, raw: bytes, name: str, value: memoryview) -> None:
        """It is the body ``raw``, of which only a shorter form was parsed: there, the field ``name`` has this
        ``value``."""
        self._raw = raw
        self.fields[name] = msgspec.Raw(value)

    def copy(self) -> JsonBody:
        """A body to be edited on its own (for a second leg); values are shared."""
        other = JsonBody.__new__(JsonBody)
        other._raw, other._changed, other._model = self._raw, self._changed, self._model
        other.fields, other.malformed = dict(self.fields), self.malformed
        return other

    def set(self, name: str, value: object) -> None:
        """Put ``value`` (anything JSON can hold) at a top-level field; a ``msgspec.Raw`` keeps its bytes."""
        self.fields[name] = msgspec.Raw(_ENCODER.encode(value))
        self._changed = True

    def drop(self, name: str) -> None:
        """Remove a top-level field, if it is there."""
        if self.fields.pop(name, None) is not None:
            self._changed = True

    def encode(self, model: str) -> bytes:
        name = _ENCODER.encode(model)
        if self._model is None or bytes(self._model) != name:
            fields = {**self.fields, "model": msgspec.Raw(name)}
        elif self._changed:
            fields = self.fields
        else:
            return self._raw
        return _ENCODER.encode(fields)


def _refusal(raw: bytes, error: Exception) -> ClientError:
    """The error for a body that cannot be parsed."""
    if isinstance(error, UnicodeDecodeError):
        return ClientError(f"the body is not UTF-8: invalid byte at {error.start}")
    if isinstance(error, RecursionError):
        return ClientError(TOO_DEEP)
    if isinstance(error, msgspec.ValidationError):
        return ClientError("the body must be a JSON object")
    if lone := _lone_surrogate(raw, str(error)):
        escape = f"the escape {lone[0].decode()} at byte {lone.start()}"
        return ClientError(f"the body is not Unicode text: {escape} is half of a surrogate pair, alone")
    return ClientError(f"the body is not valid JSON: {error}")


def _lone_surrogate(raw: bytes, said: str) -> re.Match[bytes] | None:
    """The escape at which the parser stopped, if it is half of a surrogate pair. ``said``: the parser's error message,
    which holds the position; without one the parser stopped at the end."""
    place = _PLACE.search(said)
    at = len(raw) if place is None else int(place[1])
    return _LONE_SURROGATE.search(raw, max(0, at - _NEAR), at + _NEAR)
