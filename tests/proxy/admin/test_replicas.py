"""What operators see of the other replicas."""

from __future__ import annotations

from gateway.sharing.settings import SharingSettings
from gateway.valkey.client import connect
from tests.support.gateway import Running, config_for, running
from tests.support.valkey import needs_valkey, valkey
from tests.support.wait import eventually


async def shown(gateway: Running) -> dict:
    reply = await gateway.client.get(f"{gateway.admin_url}/replicas")
    assert reply.status_code == 200
    return reply.json()


@needs_valkey
async def test_it_is_shown_who_is_heard_and_what_is_not_used(tmp_path):
    async with valkey(tmp_path) as server:
        config = config_for("http://127.0.0.1:1", sharing=SharingSettings(server.settings.url, name="tests"))
        async with running(config) as one, running(config) as two:
            replicas = one.gateway.replicas
            await eventually(lambda: replicas.states().get("fresh") == 1, within=30)
            await eventually(lambda: one.gateway.divider.replicas == 2, within=30)
            client = connect(server.settings.url)
            await client.publish("kvgate:tests:loads", "garbage")
            await client.aclose()
            await eventually(lambda: replicas.bus.dropped, within=30)
            page = await shown(one)
            assert (page["name"], page["replica"]) == ("tests", replicas.host)
            assert page["server"] == {"connected": True, "problem": "", "outages": 0}
            assert page["bus"] == page["server"] | {"dropped": {"garbage": 1}}
            assert page["limits"] == page["server"] | {"mode": "divided", "replicas": 2}
            [peer] = page["peers"]
            assert peer["replica"] == two.gateway.replicas.host
            assert peer["place"] == two.gateway.replicas.place
            assert (peer["state"], peer["endpoints"], peer["rate"]) == ("fresh", 0, 0.0)
            assert 0 <= peer["silent"] < 30
            await server.stop()
            await eventually(lambda: not replicas.connected and not replicas.bus.link.up, within=30)
            page = await shown(one)
            assert not page["bus"]["connected"]
            assert page["bus"]["problem"]
            assert page["bus"]["outages"] == 1


async def test_without_replicas_it_is_said_why():
    async with running(config_for("http://127.0.0.1:1")) as gateway:
        reply = await gateway.client.get(f"{gateway.admin_url}/replicas")
        assert reply.status_code == 404
        assert "sharing.url" in reply.json()["error"]["message"]
