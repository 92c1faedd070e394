"""What becomes of llm-d's plugin types: a verdict on each, and who makes kvgate's plugin of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from gateway.commands.convert.given import Given


class Verdict(StrEnum):
    """``SAME``: a plugin with the same formula. ``NEAR``: one that differs as the note says. ``BUILT_IN``: kvgate does
    it by itself. ``MISSING``: nothing does it, and it is left out."""

    SAME = "same"
    NEAR = "near"
    BUILT_IN = "built in"
    MISSING = "missing"


class Slot(StrEnum):
    """Where a plugin stands in a scheduling profile; ``NONE``: in none, or it is no part of the decision there."""

    FILTER = "filter"
    SCORER = "scorer"
    PICKER = "picker"
    HANDLER = "handler"
    NONE = ""


@dataclass(frozen=True, slots=True)
class Made:
    """A plugin of kvgate's. ``weight``: by which the scorer's weight is multiplied. ``note``: what differs with these
    very parameters. ``slot``: if it is another than the type's. ``session``: headers in which the session is.
    ``fallbacks``: further endpoints in a picker's answer."""

    type: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 1.0
    note: str = ""
    slot: Slot | None = None
    session: tuple[str, ...] = ()
    fallbacks: int = 0


Maker: TypeAlias = Callable[[Given], Made | None]
"""Makes the plugin of one with these parameters; None: with these it does nothing, and is left out."""


@dataclass(frozen=True, slots=True)
class PluginType:
    """``name``: its ``type`` in an EndpointPickerConfig. ``here``: what it is in kvgate, as Markdown. ``note``: what
    differs. ``make``: None where no plugin is made; then its parameters are not looked at, since nothing of kvgate's
    follows them."""

    name: str
    slot: Slot
    verdict: Verdict
    here: str
    note: str = ""
    make: Maker | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of a plugin or a setting of the file. ``line``: of the file; None: it is in none of them."""

    line: int | None
    what: str
    verdict: Verdict
    said: str

    def __str__(self) -> str:
        place = "" if self.line is None else f"line {self.line}: "
        return f"{place}{self.what}: {self.verdict}: {self.said}"
