"""The fitted costs of a fleet, as values that outlive the process, and a fleet that goes on from them.

Costs fit where model, role, starting costs and the engine's name are the same as before. An engine that has become
another process meanwhile is noticed by its first scrape (``EngineWatch``), and then only what its peers share is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from gateway.fleet.engine import EngineCore, FleetEngine
from gateway.fleet.load.fit import PeerGroup
from gateway.fleet.load.kept import KeptCore, KeptPeers
from gateway.fleet.settings import StartingCosts

PeersKey: TypeAlias = tuple[str, str, StartingCosts]
"""What peers have in common: model, role and starting costs."""


class Fitted(NamedTuple):
    """An engine whose costs are fitted, and its peers."""

    engine: FleetEngine
    key: PeersKey
    peers: PeerGroup


class KeptCosts:
    """What was kept of engines' deviations, for their cores as they are made: how many ranks an engine has is known
    only once it was probed."""

    def __init__(self) -> None:
        self._cores: dict[tuple[PeersKey, str, int | None], KeptCore] = {}

    def recall(self, fitted: Iterable[Fitted], kept: Iterable[KeptPeers]) -> int:
        """Let groups of peers, and the cores that there are, go on from what was ``kept``. Returns how many of the
        groups there are."""
        groups = {(one.model, one.role, one.start): one for one in kept}
        for key, group in groups.items():
            self._cores.update(((key, core.engine, core.rank), core) for core in group.cores)
        recalled = set()
        for one in fitted:
            group_kept = groups.get(one.key)
            if group_kept is not None and one.key not in recalled:
                one.peers.restore(group_kept.prefill, group_kept.step, group_kept.young)
                recalled.add(one.key)
            self.recall_cores(one, one.engine.cores)
        return len(recalled)

    def recall_cores(self, fitted: Fitted, cores: Sequence[EngineCore]) -> None:
        """Let these cores of the engine go on from what was kept of them, once."""
        engine = fitted.engine
        for core in cores:
            kept = self._cores.pop((fitted.key, engine.name, core.rank), None)
            if kept is None or (None not in (kept.started, engine.started) and kept.started != engine.started):
                continue
            core.cost.restore(kept.prefill, kept.step, kept.idle)
            engine.started = kept.started if engine.started is None else engine.started


def keep(fitted: Iterable[Fitted]) -> list[KeptPeers]:
    """What is to be kept of these engines' costs."""
    groups: dict[PeersKey, list[Fitted]] = {}
    for one in fitted:
        groups.setdefault(one.key, []).append(one)
    kept = []
    for (model, role, start), engines in groups.items():
        peers = engines[0].peers
        cores = tuple(_kept(one.engine, core) for one in engines for core in one.engine.cores)
        kept.append(KeptPeers(model, role, start, peers.prefill.keep(), peers.step.keep(), peers.young, cores))
    return kept


def _kept(engine: FleetEngine, core: EngineCore) -> KeptCore:
    prefill, step, idle = core.cost.keep()
    return KeptCore(engine.name, core.rank, engine.started, prefill, step, idle)
