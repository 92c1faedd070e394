"""What an autoscaler wants to know of each model, from what the rooms know of it: queues, ledgers, costs, demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from gateway.core.scaling_view import RoleView, ScalingView
from gateway.fleet.fleet import Fleet
from gateway.fleet.load.demand import DemandMeter
from gateway.fleet.load.wanted import Demand, Wanted, wanted_for_answers, wanted_for_prompts, wanted_together
from gateway.flow.live_kv import LiveKv
from gateway.flow.room import Room, queued_seconds
from gateway.flow.settings import QueueSettings
from gateway.flow.window import Windows
from gateway.framework import NO_MATCH, Clock, Endpoint, Role
from gateway.framework.request import Slo
from gateway.proxy.serving.model_directory import ModelRuntime
from gateway.proxy.serving.queueing import ModelQueue
from gateway.scheduling.prefill_decode import PrefillDecode
from gateway.sharing.siblings import Siblings
from gateway.wiring import Wiring

USUAL_ROOM = Room(QueueSettings(), LiveKv(), Windows(adapt=False))
"""By which endpoints of a model without a queue are full: as with a queue in its default settings."""


class Scaling:
    """Gives each model's view. Models whose prompts are computed apart are remembered: their series must not go where
    the last such engine does."""

    def __init__(self, wiring: Callable[[], Wiring], fleet: Fleet, siblings: Siblings | None, clock: Clock) -> None:
        """``siblings``: the host's workers; None: there is one."""
        self._wiring, self._fleet, self._siblings, self._clock = wiring, fleet, siblings, clock
        self._apart: set[str] = set()

    def views(self) -> list[ScalingView]:
        """With several workers, what the others see is taken to be like what this one does. The leading one tells how
        many engines all of that wants; the others, that one is wanted where they have something to do."""
        wiring, siblings, now = self._wiring(), self._siblings, self._clock.monotonic()
        share = 1.0 if siblings is None else 1.0 / max(1, len(siblings.live))
        views = []
        for settings, runtime in zip(wiring.config.models, wiring.directory.runtimes, strict=True):
            name = runtime.model.name
            endpoints = self._fleet.by_model.get(name, ())
            handler = wiring.scheduler.handlers.get(runtime.model.handler)
            roles = {one.role for one in endpoints}
            if Role.PREFILL in roles or any(one.role == "prefill" for one in settings.discover):
                self._apart.add(name)
            # Where pods' labels say the roles, only the handler is known while none of them was seen.
            apart = name in self._apart or (isinstance(handler, PrefillDecode) and roles != {Role.BOTH})
            view = _view(runtime, wiring.queues.get(name), endpoints, now, share, apart=apart)
            if siblings is not None and not siblings.is_lead:
                view = view._replace(roles=[one._replace(wanted=min(1, one.wanted)) for one in view.roles])
            views.append(view)
        return views


def _view(
    runtime: ModelRuntime,
    queue: ModelQueue | None,
    endpoints: Sequence[Endpoint],
    now: float,
    share: float,
    *,
    apart: bool,
) -> ScalingView:
    """``share``: of all requests, that this process sees. ``apart``: prompts are computed by engines of their own."""
    usable = [endpoint for endpoint in endpoints if endpoint.engine.up and not endpoint.draining]
    held = 0 if queue is None else queue.held.waiting
    waiting = runtime.admission.waiting + runtime.standby.waiting + held
    room = USUAL_ROOM if queue is None else queue.held.room
    full = [room.fullness(endpoint, now).saturation for endpoint in usable]
    waits = 0.0 if queue is None else queue.waiting_seconds
    roles = [Role.PREFILL, Role.DECODE] if apart else [Role.BOTH]
    queued = {role: sum(queued_seconds(one, now) for one in _of(usable, role, roles)) for role in roles}
    queued[roles[0]] += waits
    slo = Slo(
        None if runtime.slo.ttft_ms is None else runtime.slo.ttft_ms / 1000,
        None if runtime.slo.tpot_ms is None else runtime.slo.tpot_ms / 1000,
    )
    running = sum(endpoint.in_flight for endpoint in endpoints)
    answering = sum(one.load.requests for one in _of(endpoints, roles[-1], roles))
    demand = runtime.demand.demand(now, share=share, backlog=sum(queued.values()), running=answering)
    idle = not (waiting or running)
    wanted = {role: _wanted(role, demand, _of(endpoints, role, roles), slo, idle=idle) for role in roles}
    return ScalingView(
        runtime.model.name,
        waiting,
        running,
        fmean(full) if full else float(waiting > 0),
        _ttft(runtime.demand, [one for one in usable if one.role is not Role.DECODE] or usable, now, waits),
        [
            RoleView(
                *(str(role), len(of := _of(usable, role, roles)), queued[role], _pressure(of)),
                *(wanted[role].prefill + wanted[role].decode, wanted[role].engines),
            )
            for role in roles
        ],
    )


def _of(endpoints: Sequence[Endpoint], role: Role, roles: Sequence[Role]) -> list[Endpoint]:
    """Those of a role. Where prompts are computed apart, an engine that does both counts among those that answer."""
    if len(roles) == 1:
        return list(endpoints)
    return [one for one in endpoints if (one.role is Role.PREFILL) == (role is Role.PREFILL)]


def _wanted(role: Role, demand: Demand | None, endpoints: Sequence[Endpoint], slo: Slo, *, idle: bool) -> Wanted:
    """By the costs of the first of ``endpoints``: they are taken to be alike. ``idle``: nothing
    waits or runs."""
    if demand is None or not endpoints:
        return Wanted(0 if idle else 1, 0.0, 0.0)
    first = endpoints[0]
    scalars, capacity = first.cost.scalars, float(first.metrics.kv_capacity)
    if role is Role.PREFILL:
        found = wanted_for_prompts(demand, scalars, slo)
    elif role is Role.DECODE:
        found = wanted_for_answers(demand, scalars, slo, capacity)
    else:
        found = wanted_together(demand, scalars, slo, capacity)
    return found if idle else found._replace(engines=max(1, found.engines))


def _pressure(endpoints: Sequence[Endpoint]) -> float | None:
    known = [one for one in endpoints if one.metrics.kv_capacity]
    if not known:
        return None
    used = sum(one.load.kv_tokens + one.load.foreign_kv_tokens for one in known)
    return used / sum(one.metrics.kv_capacity for one in known)


def _ttft(demand: DemandMeter, endpoints: Sequence[Endpoint], now: float, waits: float) -> float | None:
    """Of a median prompt, of which an engine holds as much as usual, on the best of ``endpoints``. ``waits``: seconds
    of work that waits at the gateway before it, for all of them."""
    if (median := demand.median) is None or not endpoints:
        return None
    new, prompt = median
    held = NO_MATCH._replace(gpu=prompt - new, expected_hit=prompt - new)
    firsts = [one.cost.scalars.first_token(one.load.sums(now), held, prompt).seconds for one in endpoints]
    return min(firsts) + waits / len(endpoints)
