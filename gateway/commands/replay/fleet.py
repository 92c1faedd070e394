"""The engines of a replay: a fleet as text, such as ``4 x 70b-tp4 + 4 x 8b-h100`` or, if prompts are computed apart,
``2 x 70b-tp4:prefill + 6 x 70b-tp4:decode``; machines by name or from a file; and the network between engines."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeAlias

from gateway.commands.replay.pairs import number, pairs
from gateway.config.decode import decode
from gateway.config.document import read
from gateway.config.origin import nearest
from gateway.errors import ConfigError
from gateway.framework import Role
from simulator.virtual.machine import MACHINES, Machine

SUFFIXES = (".yaml", ".yml", ".json")
"""Suffixes of file names; any other word is the name of a machine."""

LIKE = "like"
"""The key for a known machine, whose figures are used for those that the file leaves out."""

TIMES, SLOWEST = ("prefill_token", "prefill_quadratic", "step", "step_request", "kv_token"), 10
"""Figures in seconds and their upper bound: a larger one is in another unit."""

SIZES, MOST_TOKENS = ("kv_tokens", "host_tokens"), 100_000_000
"""Figures in tokens and their upper bound, so that a mistyped size does not take all memory."""


def machine(name: str) -> Machine:
    """The machine with this name, or from the YAML file at this path. Raises ConfigError."""
    path = Path(name)
    if path.suffix in SUFFIXES:
        return load(path)
    if name not in MACHINES:
        raise ConfigError(f"there is no machine {name!r}{nearest(name, MACHINES)}; a file's name ends in {SUFFIXES[0]}")
    return MACHINES[name]


def load(path: Path) -> Machine:
    """Read a machine from a file whose keys are the figures of ``Machine``. Without a ``name`` it has the file's.

    Raises ConfigError, which names the line.
    """
    value, origin = read(path, {})
    if isinstance(value, dict):
        value = {"name": path.stem, **value}
        like = value.pop(LIKE, None)
        if like is not None:
            if not isinstance(like, str) or like not in MACHINES:
                raise origin.error((LIKE,), f"there is no machine {like!r}{nearest(str(like), MACHINES)}")
            base = MACHINES[like]
            value = {**{field.name: getattr(base, field.name) for field in fields(Machine)}, **value}
    found = decode(Machine, value, (), origin)
    for names, most, unit in ((TIMES, SLOWEST, "seconds"), (SIZES, MOST_TOKENS, "tokens")):
        for name in names:
            if getattr(found, name) > most:
                raise origin.error((name,), f"must be at most {most:,} {unit}, found {getattr(found, name):,}")
    return found


FASTEST = 1e15
"""Bytes a second: more than any link has, so that a mistyped unit is found."""

LONGEST = 60.0
"""Seconds of latency: engines give up a hand-over before this."""


@dataclass(frozen=True, slots=True)
class Link:
    """Each engine has one link into the network. A hand-over takes ``latency`` seconds and then its bytes at ``rate``
    bytes a second, once both ends are free: transfers over one link follow each other.

    The default is a link of 200 Gbit/s, which the handler ``prefill-decode`` assumes as well, with one handshake and
    one notification of vLLM's NixlConnector.
    """

    rate: float = 25e9
    latency: float = 0.002

    def __post_init__(self) -> None:
        if not 1.0 <= self.rate <= FASTEST:
            raise ConfigError(f"--link: rate must be in 1..{FASTEST:g} bytes a second")
        if not 0 <= self.latency <= LONGEST:
            raise ConfigError(f"--link: latency must be in 0..{LONGEST:g} seconds")


def link(text: str) -> Link:
    """Read ``rate=25e9,latency=0.002``, or one of both. Raises ConfigError."""
    return Link(**{name: number("--link", value) for name, value in pairs("--link", text, ("rate", "latency")).items()})


MOST = 10_000
"""Engines of a fleet at most, so that a mistyped number does not take all memory."""

ROLES = tuple(map(str, Role))


@dataclass(frozen=True, slots=True)
class Kind:
    """``count`` equal engines. ``role``: that of an endpoint in a configuration."""

    machine: Machine
    count: int = 1
    role: Role = Role.BOTH

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MOST:
            raise ConfigError(f"endpoints must be in 1..{MOST}, found {self.count} x {self.machine.name}")

    def __str__(self) -> str:
        return f"{self.count} x {self.machine.name}{'' if self.role is Role.BOTH else f':{self.role}'}"


Kinds: TypeAlias = tuple[Kind, ...]
"""A fleet. Its endpoints are numbered in this order."""

USUAL: Kinds = (Kind(MACHINES["70b-tp4"], 8),)


def kinds(text: str) -> Kinds:
    """Read parts ``N x MACHINE:ROLE`` separated by `` + ``. Without ``N x`` the number is one; without ``:ROLE`` the
    engine computes prompts and answers. Raises ConfigError."""
    return tuple(_kind(part) for part in re.split(r"\s\+\s", text.strip()))


def count(fleet: Kinds) -> int:
    """The number of endpoints."""
    return sum(kind.count for kind in fleet)


def named(fleet: Kinds) -> str:
    """The fleet as text, in the form that ``kinds`` reads."""
    return " + ".join(map(str, fleet))


def _kind(part: str) -> Kind:
    number, times, name = re.fullmatch(r"(?:(\d+)\s*(x|\*)\s*)?(.*)", part.strip(), re.DOTALL).groups()  # type: ignore[union-attr]
    name, colon, role = name.partition(":")
    if not name:
        raise ConfigError(f"endpoints: {part.strip()!r} names no machine: write such as '4 x 70b-tp4 + 4 x 8b-h100'")
    if colon and role not in ROLES:
        raise ConfigError(f"endpoints: there is no role {role!r}{nearest(role, ROLES)}; one of {', '.join(ROLES)}")
    return Kind(machine(name), int(number) if times else 1, Role(role) if colon else Role.BOTH)
