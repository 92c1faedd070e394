"""What of a host's limits one of its workers has, where the workers do not count together.

Requests in flight and bytes of bodies bound what a host does and holds. Each worker counts its own, so each has its
part: with the whole limit each, N workers would allow N times as much. Connections are spread evenly enough for that.
Limits of tenants and the queue are not divided: the workers share these.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from gateway.config.settings import Config


def of_worker(config: Config, count: int) -> Config:
    """``config`` for one of ``count`` workers, 1 or more.

    Parts are rounded up, and no smaller than what one request needs: a largest body must have room at each worker
    (``ListenSettings.max_held``), and each must be able to take one request of each model.
    """
    if count == 1:
        return config
    listen = config.listen
    held = max(ceil(listen.max_held / count), ceil(listen.max_body * 4 / 3))
    models = tuple(
        replace(
            model,
            limits=replace(
                model.limits,
                max_in_flight=ceil(model.limits.max_in_flight / count),
                max_queue=ceil(model.limits.max_queue / count),
            ),
        )
        for model in config.models
    )
    return replace(config, listen=replace(listen, max_held=held), models=models)
