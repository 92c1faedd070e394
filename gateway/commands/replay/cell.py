"""One cell of a comparison: a workload, a load, and the engines. It is small and can be pickled: a worker process
builds everything else from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.commands.replay.kinds import named
from gateway.commands.replay.scene import Scene
from gateway.commands.replay.sources import Source
from gateway.commands.replay.workload import Workload


@dataclass(frozen=True, slots=True)
class Cell(Scene):
    """``speed``: requests/s/endpoint; None: the trace's own rate, or a closed loop."""

    source: Source
    speed: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        Scene.__post_init__(self)
        self._within("speed")

    @property
    def name(self) -> str:
        """The name of the cell, such as ``mooncake_conversation, 0.45 requests/s/endpoint, 8 x 70b-tp4+host``, with its
        objectives, if any."""
        load = "" if self.speed is None else f"{self.speed:.2f} requests/s/endpoint, "
        asked = f", {self.objectives}" if str(self.objectives) else ""
        return f"{self.source.name}, {load}{named(self.fleet)}{asked}"

    def workload(self, seed: int) -> Workload:
        return self.source.workload(None if self.speed is None else self.speed * self.endpoints, seed)
