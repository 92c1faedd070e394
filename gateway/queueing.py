"""The queues of models, from one configuration to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import nlargest

from gateway.config.build import build_orders
from gateway.config.registry import Registry
from gateway.config.settings import Config
from gateway.flow.settings import QueueSettings
from gateway.framework import Context, Order
from gateway.framework.fleet import Model
from gateway.kvcache.events.poller import Poller
from gateway.proxy.serving.host_queue import HostQueue
from gateway.proxy.serving.model_directory import ModelDirectory
from gateway.proxy.serving.placer import Placer
from gateway.proxy.serving.queueing import ModelQueue
from gateway.sharing.messages import MOST_CHARGES, Charged


def queues_of(
    config: Config,
    context: Callable[[str], Context],
    registry: Registry | None,
    before: tuple[Config, Mapping[str, ModelQueue]] | None,
    make: Callable[[QueueSettings, Order, str], ModelQueue],
) -> dict[str, ModelQueue]:
    """By model, of those that have one. A queue is kept, with those who wait in it, unless its settings or its order
    change: then those who wait there are placed from it, while newcomers wait in the new one. ``before``: the
    configuration in force and its queues. Raises ConfigError."""
    in_force = {} if before is None else before[1]
    orders_before = {name: queue.order for name, queue in in_force.items()}
    orders = build_orders(config, context, registry, None if before is None else (before[0], orders_before))
    queues = {}
    for model in config.models:
        if model.queue is None:
            continue
        order, queue = orders[model.name], in_force.get(model.name)
        if queue is None or queue.settings != model.queue or queue.order is not order:
            queue = make(model.queue, order, model.name)
        queues[model.name] = queue
    return queues


MOST_CHARGED = 1e9
"""The largest charge of a second that is believed, in an order's own unit: engine seconds, tokens or requests."""


class SharedCharges:
    """What the orders of ``queues`` have charged, between replicas: see ``Order``."""

    def __init__(self, queues: Callable[[], Mapping[str, ModelQueue]]) -> None:
        self._queues = queues

    def take(self) -> tuple[Charged, ...]:
        """As many as a message has places for. They are divided among the models, and what a model does not need of
        its part is for the others; those with too many tenants tell their largest charges."""
        charged = [(model, queue.held.lines.charges()) for model, queue in self._queues().items()]
        charged.sort(key=lambda one: len(one[1]))
        told: list[Charged] = []
        for number, (model, amounts) in enumerate(charged):
            places = (MOST_CHARGES - len(told)) // (len(charged) - number)
            largest = nlargest(places, amounts.items(), key=lambda one: abs(one[1]))
            told += [Charged(model, band, tenant, amount) for (band, tenant), amount in largest]
        return tuple(told)

    def hear(self, charged: Sequence[Charged]) -> None:
        queues = self._queues()
        for one in charged:
            queue = queues.get(one.model)
            if queue is not None and -MOST_CHARGED <= one.amount <= MOST_CHARGED:
                queue.held.lines.charged_elsewhere(one.band, one.tenant, one.amount)


def connect(
    queue: ModelQueue,
    model: Model,
    directory: ModelDirectory,
    placer: Placer,
    poller: Poller,
    host: HostQueue | None,
) -> None:
    """Give a queue what it needs of the wiring in force."""
    # By the directory, which still knows the endpoints of a model that a reload has removed.
    queue.members = partial(directory.candidates, model, None, draining=True)
    queue.model, queue.plan_for, queue.expect, queue.host = model, placer.plan_for, poller.expect, host
    if host is not None:
        host.joins(queue)
