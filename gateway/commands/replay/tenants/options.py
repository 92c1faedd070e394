"""What ``kvgate replay --tenants`` compares, from the command line's options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.commands.replay.command import scene_fields
from gateway.commands.replay.objectives import Objectives
from gateway.commands.replay.pairs import number, pairs
from gateway.commands.replay.policies import DEFAULT, load_policies
from gateway.commands.replay.scene import Scene
from gateway.commands.replay.tenants.command import Asked, Files
from gateway.commands.replay.tenants.scenes import TenantScene, scenes
from gateway.commands.replay.tenants.ways import ways
from gateway.errors import ConfigError
from gateway.framework.request import Slo

LOADS = "0.8,1,1.2,1.5"
MACHINE = "8b-h100"
"""The sizes of the scenes are for 8 engines of it."""

JUDGED = Objectives(Slo(ttft=2.0, tpot=0.15))
"""What goodput counts if nothing else is asked for: what a reader of a chat of a busy service bears."""

SECONDS = 200.0
"""Of each run: forty times as long as a request waits at most."""

OF_TRACES = ("workload", "speed", "first", "deciders", "delay")
"""Options that mean nothing beside ``--tenants``."""


def asked(options: Mapping[str, Any]) -> Asked:
    """An option that is None or missing has its default. Raises ConfigError."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in OF_TRACES:
        if name in given:
            what = "a trace" if name == "workload" else f"--{name}"
            raise ConfigError(f"--tenants has requests of its own: leave out {what}")
    policies = load_policies(given.get("policies", DEFAULT))
    if len(policies) != 1:
        raise ConfigError("--tenants compares ways to wait, behind one policy: name one in --policies")
    if "machine" not in given and str(given.get("endpoints", "8")).strip().isdigit():
        given["machine"] = MACHINE
    fields = {"objectives": JUDGED, **scene_fields(given)}
    if fields["objectives"].every is None:
        raise ConfigError("--slo: --tenants counts the same objectives for all requests, such as ttft=2s,tpot=150ms")
    found = scenes(given["tenants"])
    return Asked(
        scenes=found,
        ways=ways(given.get("ways", "all")),
        scene=Scene(**fields),
        policy=policies[0],
        loads=loads(given.get("loads", LOADS)),
        capacities=capacities(given["capacity"], found) if "capacity" in given else {},
        seconds=given.get("seconds", SECONDS),
        seeds=given.get("seeds", 1),
    )


def files(options: Mapping[str, Any]) -> Files:
    """Where the results are written."""
    return Files(numbers=options.get("json"), plot=options.get("plot"), page=options.get("page"))


def loads(text: str) -> list[float]:
    """Read loads, separated by commas. Raises ConfigError."""
    found = [number("--loads", part.strip()) for part in text.split(",") if part.strip()]
    if not found:
        raise ConfigError("--loads: name at least one")
    return list(dict.fromkeys(found))


def capacities(text: str, scenes: Sequence[TenantScene]) -> dict[str, float]:
    """Read ``SCENE=RATE,...``, requests a second. Raises ConfigError."""
    names = [scene.name for scene in scenes]
    found = {name: number("--capacity", value) for name, value in pairs("--capacity", text, names).items()}
    for name, rate in found.items():
        if not 0 < rate <= 1e6:
            raise ConfigError(f"--capacity: {name} must be above 0 and at most 1000000 requests/s")
    return found
