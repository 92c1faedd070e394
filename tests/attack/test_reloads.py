"""A storm of reloads under load: nothing is lost, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections import Counter

from tests.attack.crowd import Crowd, crowd
from tests.attack.gateway import attacked, config_of
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wait import eventually

RELOADS = 20


async def test_a_reload_storm(tmp_path):
    """[reload_storm] Engines are added and removed by SIGHUP and POST, amid requests."""
    async with contextlib.AsyncExitStack() as stack:
        urls = [(await stack.enter_async_context(ScriptedEngine())).url for _ in range(3)]
        gateway = await stack.enter_async_context(attacked(tmp_path, *urls))
        open_files = gateway.descriptors()
        result, over = Crowd(Counter()), asyncio.Event()
        asking = asyncio.create_task(crowd(gateway.url, requests=10**6, clients=30, until=over.is_set, into=result))
        for number in range(RELOADS):
            some = urls[: 2 + number % 2]
            config = config_of(some, listen={"port": int(gateway.url.rpartition(":")[2])})
            config["listen"]["admin"] = gateway.admin_url.removeprefix("http://")
            (tmp_path / "plugins.yaml").write_text(json.dumps(config))
            seen = result.asked
            if number % 3:
                assert (await gateway.client.post(f"{gateway.admin_url}/reload")).status_code == 200
                assert len(await gateway.endpoints()) >= len(some)
            else:
                gateway.tell(signal.SIGHUP)
            await eventually(lambda seen=seen: result.asked > seen + 20, "requests go on", within=30)
        over.set()
        await asking
        assert set(result.ended) == {"ok"}, result
        await gateway.settled()
        await eventually(lambda: gateway.descriptors() <= open_files + 10, within=30)
        gateway.unharmed()
        assert await gateway.stop() == 0
