"""One run of a scene, and how many requests a second of it the fleet can serve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt

from gateway.commands.replay.event_loop import replay
from gateway.commands.replay.floor import demand, floors
from gateway.commands.replay.policies import Policy
from gateway.commands.replay.scene import UNASKED, Scene
from gateway.commands.replay.tenants.figures import ALL, Outcome, groups_of
from gateway.commands.replay.tenants.scenes import TenantScene
from gateway.commands.replay.tenants.ways import AT_ONCE, Way

SERVED = 0.99
"""Share of all requests that meet their objectives at the capacity."""

PRECISION = 1.02
"""Two loads with this ratio are not told apart: seeds differ by as much."""

TRIAL_SECONDS = 60.0
"""Of a run that finds the capacity: long enough for a backlog to break the objectives."""


@dataclass(frozen=True, slots=True)
class TenantJob:
    """A run of ``tenants`` at ``rate`` requests a second in all, for ``seconds``; that is ``load`` times the capacity.
    ``scene``: the fleet, and the objectives that its figures count; requests do not send them, as few clients do."""

    tenants: TenantScene
    scene: Scene
    policy: Policy
    way: Way
    load: float
    rate: float
    seconds: float
    seed: int

    def do(self, progress: Callable[[float], None]) -> Outcome:
        workload = self.tenants.workload(self.rate, self.seconds, self.seed)
        result = replay(
            workload,
            self.policy,
            replace(self.scene, objectives=UNASKED),
            seed=self.seed,
            progress=progress,
            gate=self.way.gate(self.policy),
        )
        objectives, light = self.scene.objectives, self.tenants.light
        reasons: dict[str, dict[str, int]] = {}
        for call, reason in result.refused:
            of = reasons.setdefault(call.tenant.name, {})
            of[reason] = of.get(reason, 0) + 1
        return Outcome(
            scene=self.tenants.name,
            way=self.way.name,
            load=self.load,
            rate=self.rate,
            seconds=self.seconds,
            seed=self.seed,
            cpu_seconds=result.cpu_seconds,
            groups=groups_of(result, light, objectives, self.scene.machines, self.seconds),
            reasons=reasons,
        )


@dataclass(frozen=True, slots=True)
class Capacity:
    """``rate``: requests a second of all tenants of the scene together."""

    scene: str
    rate: float

    @property
    def line(self) -> str:
        return f"{self.scene}: the fleet can serve {self.rate:.1f} requests/s"


@dataclass(frozen=True, slots=True)
class FindCapacity:
    """Finds the capacity of a fleet: the largest load at which ``SERVED`` of the requests, each placed as it comes,
    meet their objectives. Bisection from what the work alone would need, with runs of one seed."""

    tenants: TenantScene
    scene: Scene
    policy: Policy
    seed: int = 1

    def do(self, progress: Callable[[float], None]) -> Capacity:
        low, high = self._bracket()
        while high / low > PRECISION:
            middle = sqrt(low * high)
            if self._serves(middle):
                low = middle
            else:
                high = middle
            progress(min(1.0, PRECISION * low / high))
        return Capacity(self.tenants.name, low)

    def _bracket(self) -> tuple[float, float]:
        """A load that is served, and one that is not."""
        workload = self.tenants.workload(10.0, TRIAL_SECONDS, self.seed)
        machine, objectives = self.scene.machines[0], self.scene.objectives
        needed = demand(floors(workload, machine, objectives)[0].alone, machine, objectives)
        low = high = 10.0 * self.scene.endpoints / needed.engines
        while not self._serves(low):
            low, high = low / sqrt(2), low
        while low == high or self._serves(high):
            low, high = high, high * sqrt(2)
        return low, high

    def _serves(self, rate: float) -> bool:
        trial = TenantJob(self.tenants, self.scene, self.policy, AT_ONCE, 1.0, rate, TRIAL_SECONDS, self.seed)
        return trial.do(lambda share: None).groups[ALL]["good"] >= SERVED
