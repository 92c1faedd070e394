"""The engines of a fleet as text: so many of each kind, such as ``4 x 70b-tp4 + 4 x 8b-h100``; with roles if prompts
are computed apart, such as ``2 x 70b-tp4:prefill + 6 x 70b-tp4:decode``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from gateway.commands.replay.machines import machine
from gateway.config.origin import nearest
from gateway.errors import ConfigError
from gateway.framework import Role
from simulator.virtual.machine import MACHINES, Machine

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
