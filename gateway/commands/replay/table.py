"""Traces as tables: columns with a header, one request a row, times and lengths, and nothing of what prompts share.

    TIMESTAMP,ContextTokens,GeneratedTokens                                  Azure's (AzurePublicDataset, CC-BY-4.0)
    2023-11-16 18:15:46.6805900,374,44
    Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type     BurstGPT's (HPMLL/BurstGPT, CC-BY-4.0)
    5,ChatGPT,472,18,490,Conversation log

Columns may be in any order, and others beside them. A ``Session ID`` is the conversation, a ``Log Type`` the class.
BurstGPT has requests that failed, with 0 tokens: these are left out and counted.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gateway.commands.replay.recording import OwnBlocks
from gateway.commands.replay.workload import MAX_TOKENS, VLLM_BLOCK, TraceCall

LATEST = 1e12
"""The largest timestamp in seconds: one in milliseconds is refused, and fractions of seconds remain exact."""


@dataclass(frozen=True, slots=True)
class Format:
    """A known table format: the names of its columns, and the unit of its times."""

    title: str
    time: str
    prompt: str
    output: str
    seconds: Callable[[str], float]


def _date(text: str) -> float:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"must be a date and time such as 2023-11-16 18:15:46.68, found {text[:60]!r}") from None
    # One trace (2024's) has the time zone and one has not; only the time between two lines matters.
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LATEST:
        raise ValueError(f"must be seconds in 0..{LATEST:g}, found {text[:60]!r}")
    return seconds


AZURE = Format("Azure's", "TIMESTAMP", "ContextTokens", "GeneratedTokens", _date)
BURST = Format("BurstGPT's", "Timestamp", "Request tokens", "Response tokens", _seconds)
SESSION, CLASS = "Session ID", "Log Type"


class Table:
    """Reads rows; ``lines`` are the requests so far. ``head``: the first line of the table. Raises ValueError if its
    format is unknown."""

    block_size = VLLM_BLOCK
    prefixes = False

    def __init__(self, head: str) -> None:
        self.lines: list[TraceCall] = []
        self.failed = 0
        self._blocks = OwnBlocks()
        try:
            self._names = [name.strip() for name in _cells(head)]
        except csv.Error:
            self._names = []
        for form in (AZURE, BURST):
            wanted = (form.time, form.prompt, form.output)
            if all(name in self._names for name in wanted):
                break
        else:
            formats = " or ".join(f"{one.title} ({one.time},{one.prompt},{one.output})" for one in (AZURE, BURST))
            raise ValueError(
                f"not JSON, and no header of a table of {formats}: {head.strip()[:80]!r}. Rename the columns, or write "
                'lines such as {"timestamp": 0, "input_length": 700, "output_length": 5}, with milliseconds'
            )
        for name in (*wanted, SESSION, CLASS):
            if self._names.count(name) > 1:
                raise ValueError(f"two columns are called {name!r}")
        self._format = form

    def take(self, text: str, number: int) -> None:
        """Read one row. Raises ValueError or csv.Error."""
        cells = _cells(text)
        if len(cells) != len(self._names):
            raise ValueError(f"must have {len(self._names)} columns, as the header has, found {len(cells)}")
        form, row = self._format, dict(zip(self._names, map(str.strip, cells), strict=True))
        try:
            at = form.seconds(row[form.time])
        except ValueError as error:
            raise ValueError(f"{form.time} {error}") from None
        prompt, output = _tokens(form.prompt, row[form.prompt]), _tokens(form.output, row[form.output])
        if not prompt or not output:
            self.failed += 1
            return
        session, traffic = row.get(SESSION) or None, row.get(CLASS, "")
        self.lines.append(TraceCall(at, prompt, output, self._blocks.of(prompt), session, traffic))


def _cells(text: str) -> Sequence[str]:
    return next(csv.reader([text]), [])


def _tokens(name: str, text: str) -> int:
    # A few digits more than MAX_TOKENS has: a longer number is refused before it is parsed.
    if not (text.isascii() and text.isdigit() and len(text) <= 9) or int(text) > MAX_TOKENS:
        raise ValueError(f"{name} must be a whole number of tokens in 0..{MAX_TOKENS}, found {text[:60]!r}")
    return int(text)
