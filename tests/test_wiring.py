"""Covers: gateway/wiring.py, gateway/pricing.py.

What a configuration comes to, before anything of it runs.
"""

from __future__ import annotations

from gateway.app import Gateway
from gateway.fleet.settings import CostSettings, EndpointSettings
from tests.support.gateway import config_for

URLS = ("http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3")


async def test_that_a_models_sizes_are_not_known_is_said_once_a_model(caplog) -> None:
    on = tuple(EndpointSettings(url=url, cost=CostSettings(gpu="h100")) for url in URLS)
    await Gateway(config_for(endpoints=on)).close()
    (said,) = [record.getMessage() for record in caplog.records if record.name == "kvgate.cost"]
    assert "model sim: cost.gpu: no config.json" in said


async def test_nobody_asks_for_a_models_sizes_where_no_gpu_is_named(caplog) -> None:
    await Gateway(config_for(*URLS)).close()
    assert not [record for record in caplog.records if record.name == "kvgate.cost"]
