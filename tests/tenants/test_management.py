from __future__ import annotations

import hashlib

import pytest

from gateway.config.tenants_file import TenantsFile
from gateway.errors import ClientError, NotFound
from gateway.tenants.file_store import FileStore
from gateway.tenants.limit_settings import LimitSettings
from gateway.tenants.management import Management, NewKey
from gateway.tenants.settings import TenantKeySettings, TenantSettings, TenantsFileSettings, expiry

OWN = TenantsFileSettings((TenantSettings("own"),), (TenantKeySettings("own-key", "00" * 32, "own"),))


@pytest.fixture
def management(tmp_path, clock):
    return Management(FileStore(TenantsFile(str(tmp_path / "tenants.yaml"), OWN, {})), OWN, clock)


async def test_a_key_is_shown_once(management):
    made = await management.add(NewKey("red", "ci", models=("a*",), limits=LimitSettings(queued=2), create_tenant=True))
    text = made.pop("key")
    assert text.startswith("kvg-")
    assert made["sha256"] == hashlib.sha256(text.encode()).hexdigest()[:12]
    [own, shown] = await management.keys()
    assert (own["id"], own["source"]) == ("own-key", "plugins.yaml")
    assert shown == made
    assert (shown["models"], shown["limits"], shown["expired"]) == (["a*"], {"queued": 2}, False)
    assert text not in str(await management.tenant("red"))


async def test_a_key_without_an_id_gets_one_of_its_own(management):
    first, second = [await management.add(NewKey("own")) for _ in range(2)]
    assert first["id"] != second["id"]
    assert first["id"].startswith("own-")


async def test_a_key_ends_after_a_span_or_at_a_date(management, clock):
    assert expiry((await management.add(NewKey("own", expires="2h")))["expires"]) == clock.wall() + 7200
    assert (await management.add(NewKey("own", expires="2090-01-31")))["expires"] == "2090-01-31"
    clock.now += 7201
    assert [key["expired"] for key in await management.keys()] == [False, True, False]


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        (NewKey("red"), "tenant"),
        (NewKey("own", "own-key"), "id"),
        (NewKey("own", "two words"), "id"),
        (NewKey("own", expires="soon"), "expires"),
        (NewKey("own", expires="1999-01-01"), "expires"),
        (NewKey("own", models=("a*b",)), "models"),
        (NewKey("two words", "ci", create_tenant=True), "tenant"),
    ],
    ids=str,
)
async def test_what_cannot_be_is_refused_by_its_name(management, wanted, param):
    with pytest.raises(ClientError) as refused:
        await management.add(wanted)
    assert refused.value.param == param
    assert len(await management.keys()) == 1


async def test_a_rotated_key_has_two_until_the_old_one_ends(management, clock):
    first = await management.add(NewKey("own", "ci"))
    second = await management.rotate("ci", "1h")
    assert second["key"] != first["key"]
    assert [(key["id"], key.get("expires") is None) for key in await management.keys()][1:] == [
        *(("ci", False), ("ci", True))
    ]
    clock.now += 3600
    assert [key["expired"] for key in await management.keys()][1:] == [True, False]
    await management.rotate("ci", "0")
    assert [key["expired"] for key in await management.keys()][1:] == [True, True, False]
    assert await management.revoke("ci") == {"id": "ci", "revoked": True}
    assert len(await management.keys()) == 1


@pytest.mark.parametrize("keep", ["", "long", "91d", "-1h"])
async def test_an_old_key_is_not_kept_for_ever(management, keep):
    await management.add(NewKey("own", "ci"))
    with pytest.raises(ClientError, match="keep must be a span of at most 90d"):
        await management.rotate("ci", keep)


async def test_tenants_are_made_shown_and_replaced(management):
    await management.put_tenant(TenantSettings("red", weight=2.0))
    await management.put_tenant(TenantSettings("red", band=-1))
    assert [(one["name"], one.get("band"), one.get("weight")) for one in await management.tenants()] == [
        *(("own", None, None), ("red", -1, None))
    ]
    assert (await management.tenant("red"))["keys"] == []
    with pytest.raises(NotFound):
        await management.tenant("blue")


async def test_what_stands_in_plugins_yaml_is_changed_there(management):
    for change in (
        management.put_tenant(TenantSettings("own")),
        management.revoke("own-key"),
        management.rotate("own-key"),
    ):
        with pytest.raises(ClientError, match=r"stands in plugins\.yaml"):
            await change
    with pytest.raises(NotFound):
        await management.revoke("none")


async def test_without_a_place_to_write_nothing_is_made(clock):
    management = Management(None, OWN, clock)
    assert [key["id"] for key in await management.keys()] == ["own-key"]
    with pytest.raises(ClientError, match=r"set tenants\.file or tenants\.valkey"):
        await management.add(NewKey("own"))
