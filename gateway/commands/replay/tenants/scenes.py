"""The scenes: who shares the fleet, with what requests, and whose waiting is looked at.

Sizes are chosen so that about half of the engines' time goes to prompts and half to answers, as with chats of an 8B
model on one H100 each. The shares of the tenants stay the same at each load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from random import Random

from gateway.commands.replay.tenants.traffic import BLOCK, Bursts, Chats, Ids, Requests, Size, Traffic
from gateway.commands.replay.workload import TraceCall
from gateway.config.origin import nearest
from gateway.errors import ConfigError
from gateway.framework import Tenant

WARM_UP = 30.0
"""Seconds before the requests that count: caches, and what is learned of costs and answers, are then as they stay."""


@dataclass(frozen=True, slots=True)
class Member:
    """One tenant of a scene. ``part``: of all requests, relative to the other tenants' parts. ``light``: it asks for
    less than its share; its requests are those that have to be spared. ``weight``: see ``Tenant``; ``band``: see
    ``TraceCall``."""

    name: str
    traffic: Traffic
    part: float
    light: bool = False
    weight: float = 1.0
    band: int = 0


@dataclass(frozen=True, slots=True)
class TenantScene:
    """``members``: at least one of them is light. ``about``: one sentence for the reader of its figures."""

    name: str
    about: str
    members: tuple[Member, ...]

    @property
    def light(self) -> frozenset[str]:
        """The names of the light tenants."""
        return frozenset(member.name for member in self.members if member.light)

    def workload(self, rate: float, seconds: float, seed: int) -> Crowd:
        """``rate``: requests a second of all tenants together, for so many seconds behind the warm-up."""
        return Crowd(self, rate, WARM_UP + seconds, seed)


class Crowd:
    """A ``Workload`` of all tenants of a scene. Each has chance of its own: what one sends does not depend on the
    others."""

    block_size = BLOCK

    def __init__(self, scene: TenantScene, rate: float, seconds: float, seed: int) -> None:
        self.name = scene.name
        ids, parts = Ids(), sum(member.part for member in scene.members)
        calls: list[TraceCall] = []
        for member in scene.members:
            chance = Random(f"{seed}/{scene.name}/{member.name}")
            tenant = Tenant(member.name, member.weight)
            calls += (
                TraceCall(
                    one.at,
                    one.input_tokens,
                    one.output_tokens,
                    one.blocks,
                    session=f"{member.name}/{one.session}" if one.session else None,
                    tenant=tenant,
                    band=member.band,
                )
                for one in member.traffic.sent(rate * member.part / parts, seconds, chance, ids)
            )
        self._calls = sorted(calls, key=attrgetter("at"))

    def start(self) -> Sequence[TraceCall]:
        return self._calls

    def answered(self, call: TraceCall, at: float) -> Sequence[TraceCall]:
        return ()


def _light(part: float, count: int = 8) -> tuple[Member, ...]:
    """``count`` tenants with chats, which have ``part`` of the requests together."""
    return tuple(Member(f"light-{number}", Chats(), part / count, light=True) for number in range(1, count + 1))


SCENES: Mapping[str, TenantScene] = {
    scene.name: scene
    for scene in (
        TenantScene(
            "greedy-long",
            "Eight light tenants with chats, and a greedy one that sends new documents.",
            (*_light(18), Member("greedy", Requests(Size(6300)), 22)),
        ),
        TenantScene(
            "greedy-many",
            "Eight light tenants with chats, and a greedy one that sends many short prompts.",
            (*_light(18), Member("greedy", Requests(Size(1100)), 127)),
        ),
        TenantScene(
            "priority-burst",
            "A tenant of a higher band sends bursts of requests into what four others keep busy.",
            (
                Member("urgent", Bursts(Requests(Size(1500))), 10, light=True, band=1),
                *(Member(f"usual-{number}", Chats(), 10) for number in range(1, 5)),
            ),
        ),
        TenantScene(
            "long-among-short",
            "A tenant sends few prompts of 24,000 tokens among the short ones of three others.",
            (
                Member("long", Requests(Size(24_000, 0.3)), 1, light=True),
                *(Member(f"short-{number}", Requests(Size(700)), 30) for number in range(1, 4)),
            ),
        ),
        TenantScene(
            "thrashing",
            "Agents' sessions hold more than all caches together, beside four light tenants with chats.",
            (
                *_light(8, 4),
                *(
                    Member(f"agents-{number}", Chats(3000, Size(800), turns=10, think=20.0, first=Size(6000)), 4)
                    for number in range(1, 5)
                ),
            ),
        ),
    )
}
"""By name, in the order in which they are shown."""


def scenes(names: str) -> list[TenantScene]:
    """Read names of scenes, separated by commas; ``all`` stands for all of them. Raises ConfigError."""
    asked = [name.strip() for name in names.split(",") if name.strip()]
    if not asked:
        raise ConfigError("--tenants: name at least one scene")
    found: dict[str, TenantScene] = {}
    for name in asked:
        if name == "all":
            found |= SCENES
        elif name in SCENES:
            found[name] = SCENES[name]
        else:
            raise ConfigError(f"--tenants: there is no scene {name!r}{nearest(name, (*SCENES, 'all'))}")
    return list(found.values())
