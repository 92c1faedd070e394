"""Whether a gateway that runs is the one that a configuration means."""

from __future__ import annotations

from dataclasses import replace

from gateway.commands.explain.running_gateway import RunningGateway
from gateway.fleet.settings import EndpointSettings
from tests.support.engines import engines
from tests.support.gateway import config_for, running


async def test_it_serves_a_configuration_however_its_urls_are_written() -> None:
    async with engines(1) as (engine,), running(config := config_for(engine.url)) as gateway:
        (model,) = config.models

        async def serves(*urls: str, name: str = model.name) -> bool:
            wanted = replace(model, name=name, endpoints=tuple(EndpointSettings(url=url) for url in urls))
            return await asked.serves(replace(config, models=(wanted,)))

        async with RunningGateway(gateway.admin_url) as asked:
            assert await serves(engine.url)
            assert await serves(f"{engine.url.replace('http', 'HTTP')}/")
            assert not await serves("http://127.0.0.1:1")
            assert not await serves(engine.url, "http://127.0.0.1:1")
            assert not await serves(engine.url, name="other")


async def test_engines_that_it_has_found_are_its_own_business() -> None:
    config = config_for()
    async with engines(2) as (first, second), running(config) as gateway, RunningGateway(gateway.admin_url) as asked:
        for engine in (first, second):
            body = {"url": engine.url}
            assert (await gateway.client.post(f"{gateway.admin_url}/endpoints", json=body)).status_code == 200
        assert await asked.serves(config)
        assert await asked.serves(config_for(first.url))
        assert not await asked.serves(config_for("http://127.0.0.1:1"))
