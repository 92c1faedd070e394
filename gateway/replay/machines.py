"""Machines by name or from a file: what one engine's steps take, and how much KV it holds."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from gateway.config.decode import decode
from gateway.config.document import read
from gateway.config.origin import nearest
from gateway.errors import ConfigError
from simulator.virtual.machine import MACHINES, Machine

SUFFIXES = (".yaml", ".yml", ".json")
"""Of a file: other words are names."""

LIKE = "like"
"""The key that names the machine whose figures are taken for what the file leaves out."""

TIMES, SLOWEST = ("prefill_token", "prefill_quadratic", "step", "step_request", "kv_token"), 10
"""Figures in seconds, none of which is longer: more is one in another unit."""

SIZES, MOST_TOKENS = ("kv_tokens", "host_tokens"), 100_000_000
"""Figures in tokens, none of which is larger: a mistyped size must not take all memory."""


def machine(name: str) -> Machine:
    """The machine of that name, or of the YAML file at that path. Raises ConfigError."""
    path = Path(name)
    if path.suffix in SUFFIXES:
        return load(path)
    if name not in MACHINES:
        raise ConfigError(f"there is no machine {name!r}{nearest(name, MACHINES)}; a file's name ends in {SUFFIXES[0]}")
    return MACHINES[name]


def load(path: Path) -> Machine:
    """Of a file whose keys are the figures of ``Machine``; its ``name`` is the file's where it gives none.

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
