"""Observes an answer's server-sent events as they pass: commit, first output, usage, end. Rewrites nothing.

Rules: every split of the stream into chunks gives the same result. Until the first output every event is parsed; the
proxy holds those bytes back until ``committed``. After it a chunk costs one search in C: what the last events hold
(usage, end, error) is read from a short tail, and only when requested.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.api.usage import Usage, usage_of
from gateway.framework import Kind

TAIL = 16 * 1024
"""Bytes of the stream's end that are kept: the closing events of each dialect, from their ``usage`` on, have well below
2 KB."""
MAX_EVENT = 16 * 1024 * 1024
"""The most bytes of an event for whose end the observer waits; after that the bytes are passed to the client. vLLM's
longest first event carries the prompt's token ids and log-probabilities: a few megabytes."""

_EVENT_LINES: dict[Kind, bytes] = {Kind.RESPONSES: b".delta", Kind.MESSAGES: b"content_block_delta"}
"""The end of the ``event:`` line of an event with output, where a dialect has such lines."""
_ENDS: dict[Kind, re.Pattern[bytes]] = {
    # The last event holds the whole response, may be longer than the tail, and has its type at the end.
    Kind.RESPONSES: re.compile(
        rb'(?:^event: ?|"type" ?: ?")response\.(?:completed|incomplete|failed)["\r\n]', re.MULTILINE
    ),
    Kind.MESSAGES: re.compile(rb"^event: ?message_stop\r?\n", re.MULTILINE),
}
_DONE = re.compile(rb"data: ?\[DONE\]\r?\n")
_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')
_ERROR = re.compile(rb'data: ?(\{"(?:error"\s*:\s*\{|type"\s*:\s*"error")[^\r\n]*)\r?\n')
_BRACES = re.compile(rb'[{}]|"(?:[^"\\]|\\.)*"', re.DOTALL)
_NOT_OUTPUT = frozenset({"message_start", "ping", "content_block_start", "content_block_stop"})
"""Anthropic's events before and around the output; its others are output or the end."""

_NULL = msgspec.Raw(b"null")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class EventObserver:
    """Gets an answer's bytes as they come.

    ``committed``: an event came that is neither a comment nor an error. ``error``: the payload of the first event, if
    that is an error. Neither: only comments and parts of events so far, and the bytes may still be held back.

    ``early_error``: the payload of an error after events that only announce an answer (a role, ``message_start``, ...).
    ``first_output``: an event with output came. ``outputs``: the number of such events so far, about one per token and
    sequence; a final usage event of the OpenAI dialect counts as one, and is reported by ``apart`` at the end.
    """

    __slots__ = (
        "_begun",
        "_carry",
        "_data",
        "_early_end",
        "_early_usage",
        "_event",
        "_kind",
        "_line",
        "_pattern",
        "_spaced",
        "_tail",
        "_tail_size",
        "_waiting",
        "committed",
        "early_error",
        "error",
        "first_output",
        "outputs",
    )

    def __init__(self, kind: Kind) -> None:
        self.committed = False
        self.error: bytes | None = None
        self.early_error: bytes | None = None
        self.first_output = False
        self.outputs = 0
        self._kind = kind
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        # Before the first output: the line and the event being read.
        self._begun = False
        self._line: list[bytes] = []
        self._event = b""
        self._data: list[bytes] = []
        self._spaced = True
        self._waiting = 0
        self._early_usage: Usage | None = None
        self._early_end = False
        # After it: the bytes that events with output begin with, and the last bytes, since a chunk may end inside them.
        self._pattern = b""
        self._carry = b""

    def feed(self, chunk: bytes) -> None:
        """Read the next bytes of the answer's body."""
        if not chunk:
            return
        tail = self._tail
        tail.append(chunk)
        self._tail_size += len(chunk)
        while self._tail_size - len(tail[0]) >= TAIL:
            self._tail_size -= len(tail.popleft())
        if self.first_output:
            self._count(chunk)
        else:
            self._read(chunk)

    @property
    def partial(self) -> bool:
        """Whether the bytes so far end inside an event: what follows would be read as its continuation."""
        end = self._end()
        return bool(end) and not end.endswith((b"\n\n", b"\n\r\n"))

    @property
    def finished(self) -> bool:
        """The stream's end was seen: ``[DONE]``, ``message_stop``, ``response.completed`` (or failed, incomplete)."""
        if self._early_end:
            return True
        tail, end = self._end(), _ENDS.get(self._kind)
        start = tail.rfind(b"\ndata:") + 1  # the last data line, or the tail's start
        return _DONE.match(tail, start) is not None or (end is not None and end.search(tail) is not None)

    @property
    def apart(self) -> int:
        """How many of ``outputs`` hold the usage and no output, known at the stream's end: 0 or 1."""
        tail = self._end() if self.first_output else b""
        # From the end: it is nearly the last event, and of two searches for nothing this is the faster one.
        return int(tail.rfind(b'"choices":[]') >= 0 or tail.rfind(b'"choices": []') >= 0)

    @property
    def usage(self) -> Usage | None:
        """The last counts that the engine reported; None: none so far."""
        tail = self._end()
        at = tail.rfind(b'"usage"')
        while at >= 0:
            found = _USAGE.match(tail, at)
            late = None if found is None else usage_of(_object_at(tail, found.end()), self._kind)
            if late is not None:
                return late if self._early_usage is None else self._early_usage.merged(late)
            at = tail.rfind(b'"usage"', 0, at)
        return self._early_usage

    @property
    def late_error(self) -> bytes | None:
        """The payload of an error event after the commit, if the stream ended in one."""
        tail = self._end() if self.committed else b""
        if tail.rfind(b'"error"') < 0:
            return None
        for start in (b'{"error"', b'{"type"'):
            found = _ERROR.match(tail, tail.rfind(b"\n", 0, max(0, tail.rfind(start))) + 1)
            if found is not None:
                return found.group(1)
        return None

    def _end(self) -> bytes:
        """The last bytes so far, at most ``TAIL``."""
        if len(self._tail) > 1:
            joined = b"".join(self._tail)[-TAIL:]
            self._tail = deque((joined,))
            self._tail_size = len(joined)
        return self._tail[0][-TAIL:] if self._tail else b""

    def _count(self, chunk: bytes) -> None:
        seen = self._carry + chunk
        self.outputs += seen.count(self._pattern)
        self._carry = seen[1 - len(self._pattern) :]

    def _read(self, chunk: bytes) -> None:
        """Split into lines, and handle each event that a blank line ends."""
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._line.append(chunk[start:end])
            start = end + 1
            line = b"".join(self._line)
            self._line.clear()
            crlf = line.endswith(b"\r")
            if crlf:
                line = line[:-1]
            if not self._begun:
                self._begun = True
                line = line.removeprefix(b"\xef\xbb\xbf")  # a byte order mark may begin a stream
            if line:
                self._field(line)
                continue
            self._waiting = 0
            if self._data:
                self._dispatch(crlf=crlf)
                if self.first_output:
                    self._count(chunk[start:])
                    return
            self._event = b""
        if start < len(chunk):
            self._line.append(chunk[start:])
        self._waiting += len(chunk) - start
        if self._waiting > MAX_EVENT:
            self.committed = self.first_output = True
            self._line.clear()
            self._data.clear()
            self._start_counting(crlf=False)

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        self._waiting += len(line)
        if name == b"data":
            self._spaced = value.startswith(b" ")
            self._data.append(value.removeprefix(b" "))
        elif name == b"event":
            self._event = value.removeprefix(b" ")

    def _dispatch(self, *, crlf: bool) -> None:
        payload = b"\n".join(self._data)
        self._data.clear()
        if payload == b"[DONE]":
            self._early_end = True
            self.committed = self.error is None
            return
        fields = _fields(payload)
        kind = (_text(fields["type"]) if "type" in fields else None) or self._event.decode("latin-1")
        failed = kind == "error" or self._event == b"error" or fields.get("error", _NULL) != _NULL
        if not self.committed:
            if failed:
                self.error = self.error or payload
            if self.error is not None:
                return
            self.committed = True
        elif failed:
            self.early_error = self.early_error or payload
            return
        for name in ("usage", "message", "response"):
            if name not in fields:
                continue
            usage = fields[name] if name == "usage" else _fields(bytes(fields[name])).get("usage", _NULL)
            found = usage_of(_value(usage), self._kind) if usage != _NULL else None
            if found is not None:
                self._early_usage = found if self._early_usage is None else self._early_usage.merged(found)
        if self._has_output(fields, kind):
            self.first_output = True
            self.outputs = 1
            self._start_counting(crlf=crlf)

    def _start_counting(self, *, crlf: bool) -> None:
        """From here on, count events with output by the bytes that the first one began with."""
        line = _EVENT_LINES.get(self._kind, b"") if self._event else b""
        self._pattern = line + (b"\r\n" if crlf and line else b"\n") + (b"data: {" if self._spaced else b"data:{")
        self._carry = b"\n"

    def _has_output(self, fields: Mapping[str, msgspec.Raw], kind: str) -> bool:
        if self._kind is Kind.MESSAGES:
            return kind not in _NOT_OUTPUT
        if self._kind is Kind.RESPONSES:
            return kind.endswith((".delta", ".completed", ".incomplete", ".failed"))
        if "choices" not in fields:
            return True
        choices = _value(fields["choices"])
        if isinstance(choices, list):
            for choice in choices:
                if isinstance(choice, dict) and _choice_has_output(choice):
                    return True
        return False


def _choice_has_output(choice: Mapping[str, Any]) -> bool:
    """Not a role-only delta. An empty text without a role is output: a token that ends inside a character."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return True
    if choice.get("finish_reason") is not None:
        return True
    if "role" not in delta:
        return bool(delta)
    others = dict(delta)
    del others["role"]
    return any(others.values())


def _fields(payload: bytes) -> Mapping[str, msgspec.Raw]:
    try:
        return _OBJECT.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


def _value(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _text(raw: msgspec.Raw) -> str | None:
    value = _value(raw)
    return value if isinstance(value, str) else None


def _object_at(text: bytes, start: int) -> Any:
    """The JSON object that begins at ``start``, whatever follows it; None if it does not end."""
    depth = 0
    for match in _BRACES.finditer(text, start):
        token = match.group()
        if token == b"{":
            depth += 1
        elif token == b"}":
            depth -= 1
            if depth == 0:
                return _value(msgspec.Raw(text[start : match.end()]))
    return None
