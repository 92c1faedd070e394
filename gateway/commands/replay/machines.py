"""Machines by name or from a file: how long an engine's steps take, and how much KV it holds."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from gateway.config.decode import decode
from gateway.config.document import read
from gateway.config.origin import nearest
from gateway.errors import ConfigError
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
