"""A small scene, calls of one's choice, and runs of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.commands.replay.event_loop import replay
from gateway.commands.replay.fleet import Kind
from gateway.commands.replay.objectives import Objectives
from gateway.commands.replay.policies import load_policy
from gateway.commands.replay.scene import Scene
from gateway.commands.replay.tenants.job import TenantJob
from gateway.commands.replay.tenants.scenes import Member, TenantScene
from gateway.commands.replay.tenants.traffic import Chats, Requests, Size
from gateway.commands.replay.tenants.ways import WAYS
from gateway.commands.replay.workload import Result, TraceCall
from gateway.framework import Tenant
from gateway.framework.request import Slo
from simulator.virtual.machine import MACHINES

SMALL = TenantScene(
    "small",
    "Two light tenants and a greedy one.",
    (
        Member("light-1", Chats(200, Size(300), Size(40), turns=3, think=5.0), 1, light=True),
        Member("light-2", Chats(200, Size(300), Size(40), turns=3, think=5.0), 1, light=True),
        Member("greedy", Requests(Size(2000), Size(40)), 2),
    ),
)
MACHINE = replace(MACHINES["8b-h100"], kv_tokens=60_000)
FLEET = Scene(fleet=(Kind(MACHINE, 2),), objectives=Objectives(Slo(2.0, 0.15)))


def job(way: str, rate: float, *, seconds: float = 20.0, seed: int = 1, load: float = 1.0) -> TenantJob:
    return TenantJob(SMALL, FLEET, load_policy("default"), WAYS[way], load, rate, seconds, seed)


@dataclass
class Calls:
    """A workload of these."""

    calls: Sequence[TraceCall]
    name: str = "calls"
    block_size: int = 16

    def start(self) -> Sequence[TraceCall]:
        return self.calls

    def answered(self, call: TraceCall, at: float) -> Sequence[TraceCall]:
        return ()


def call(number: int, at: float, tenant: str, tokens: int = 2000, output: int = 40, band: int = 0) -> TraceCall:
    """A call with a prompt of its own; ``number``: another one for each call."""
    blocks = tuple(range(number * 10_000, number * 10_000 + -(-(tokens + output) // 16)))
    return TraceCall(at, tokens, output, blocks, tenant=Tenant(tenant), band=band)


def run(calls: Sequence[TraceCall], way: str, scene: Scene = FLEET) -> Result:
    policy = load_policy("default")
    return replay(Calls(calls), policy, scene, seed=1, gate=WAYS[way].gate(policy))
