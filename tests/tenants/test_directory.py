from __future__ import annotations

import hashlib

import pytest

from gateway.core.clock import ManualClock
from gateway.errors import NotLoaded, Unauthorized
from gateway.tenants.directory import Directory, Roster, digest
from gateway.tenants.header_tenants import MOST
from gateway.tenants.settings import TenantKeySettings, TenantSettings, TenantsFileSettings, TenantsSettings

RED, BLUE = TenantSettings("red", weight=2.0), TenantSettings("blue")


def entry(key: str, tenant: str = "red", **values) -> TenantKeySettings:
    return TenantKeySettings(values.pop("id", key), hashlib.sha256(key.encode()).hexdigest(), tenant, **values)


def directory(clock=None, client_keys=(), found=None, complete=True, **values) -> Directory:
    found = TenantsFileSettings() if found is None else found
    roster = Roster.make(TenantsSettings(**values), map(digest, client_keys), found, complete=complete)
    return Directory(roster, clock or ManualClock())


def test_nothing_configured_lets_everybody_in():
    tenants = directory()
    assert tenants.plain
    assert tenants.find("", "").tenant.name == tenants.find("any key", "").tenant.name == "default"


def test_a_key_says_the_tenant():
    tenants = directory(tenants=(RED, BLUE), keys=(entry("a"), entry("b", "blue")))
    assert not tenants.plain
    assert (tenants.find("a", "").tenant.name, tenants.find("a", "").key) == ("red", "a")
    assert tenants.find("b", "").tenant.name == "blue"
    assert tenants.find("a", "") is tenants.find("a", ""), "many requests share one object"


@pytest.mark.parametrize("given", ["", "kvg-c", "KVG-A", "kvg-a ", "kvg-\udcff"])
def test_without_a_valid_key_nobody_gets_in(given):
    with pytest.raises(Unauthorized) as refused:
        directory(tenants=(RED,), keys=(entry("kvg-a", id="a"),)).find(given, "")
    assert not given or given not in refused.value.message


def test_a_key_of_today_is_the_default_tenant_s():
    tenants = directory(client_keys=("old",), tenants=(RED,), keys=(entry("a"),))
    caller = tenants.find("old", "")
    assert (caller.tenant.name, caller.key) == ("default", None)
    with pytest.raises(Unauthorized):
        tenants.find("other", "")


def test_the_default_tenant_may_have_settings():
    tenants = directory(tenants=(TenantSettings("default", weight=3.0, bands=(-2, 2)),))
    assert tenants.find("", "").tenant.weight == 3.0
    assert tenants.find("", "").bands == (-2, 2)


def test_a_key_ends_at_its_moment():
    clock = ManualClock()
    tenants = directory(clock, tenants=(RED,), keys=(entry("a", expires="1970-01-01T00:01:00"),))
    clock.now += 60.0 - clock.wall() - 1.0
    assert tenants.find("a", "").key == "a"
    clock.now += 1.0
    with pytest.raises(Unauthorized, match="expired"):
        tenants.find("a", "")


def test_two_keys_of_one_id_are_valid_while_one_replaces_the_other():
    clock = ManualClock()
    old, new = entry("a", id="ci", expires="1970-01-01T00:01:00"), entry("b", id="ci")
    tenants = directory(clock, tenants=(RED,), keys=(old, new))
    assert tenants.find("a", "").key == tenants.find("b", "").key == "ci"
    clock.now += 60.0 - clock.wall()
    assert tenants.find("b", "").key == "ci"
    with pytest.raises(Unauthorized):
        tenants.find("a", "")


def test_who_revokes_the_last_key_lets_nobody_in():
    tenants = directory(file="tenants.yaml", found=TenantsFileSettings((RED,), (entry("a"),)))
    assert tenants.find("a", "").tenant.name == "red"
    tenants.use(Roster.make(TenantsSettings(file="tenants.yaml")))
    for key in ("a", ""):
        with pytest.raises(Unauthorized):
            tenants.find(key, "")


def test_a_key_without_its_tenant_is_no_key():
    with pytest.raises(Unauthorized):
        directory(file="tenants.yaml", found=TenantsFileSettings((), (entry("a"),))).find("a", "")


def test_until_the_keys_are_loaded_nobody_is_told_that_a_key_is_wrong():
    tenants = directory(file="t", complete=False, tenants=(RED,), keys=(entry("a"),))
    assert tenants.find("a", "").tenant.name == "red"
    with pytest.raises(NotLoaded):
        tenants.find("b", "")
    with pytest.raises(Unauthorized):
        tenants.find("", "")


def test_the_configuration_s_own_come_before_what_was_found():
    found = TenantsFileSettings((TenantSettings("red", weight=9.0),), (entry("a", "blue"),))
    tenants = directory(tenants=(RED, BLUE), keys=(entry("a"),), found=found)
    assert tenants.find("a", "").tenant == directory(tenants=(RED,)).roster.callers["red"].tenant


def test_a_header_is_believed_only_where_it_is_trusted():
    assert directory(header="X-Team", trusted=True).roster.trusted
    assert not directory(header="X-Team").roster.trusted
    assert directory(header="X-Team").roster.header == "x-team", "it goes to no engine even so"


def test_a_header_names_a_tenant_and_is_no_label():
    tenants = directory(header="x-team", trusted=True, tenants=(RED, TenantSettings("default", bands=(-1, 0))))
    assert (tenants.find("", "red").label, tenants.find("", "red").tenant.weight) == ("red", 2.0)
    green = tenants.find("", "green")
    assert (green.tenant.name, green.label, green.bands) == ("green", "header", (-1, 0))
    assert tenants.find("", "").tenant.name == "default"


def test_a_key_s_tenant_counts_before_the_header_and_a_key_without_one_after_it():
    tenants = directory(
        client_keys=("old",), header="x-team", trusted=True, tenants=(RED, BLUE), keys=(entry("a"),), anonymous=True
    )
    assert tenants.find("a", "blue").tenant.name == "red"
    assert tenants.find("old", "blue").tenant.name == "blue"
    assert tenants.find("wrong", "blue").tenant.name == "blue"
    assert tenants.find("", "").tenant.name == "default"


def test_one_header_tenant_too_many_is_the_other_one():
    tenants = directory(header="x-team", trusted=True)
    names = {tenants.find("", str(number)).tenant.name for number in range(MOST + 500)}
    assert len(names) == MOST + 1
    other = tenants.find("", "one more")
    assert (other.tenant.name, other.label) == ("other", "other")


def test_a_new_roster_counts_for_header_tenants_too():
    tenants = directory(header="x-team", trusted=True)
    assert tenants.find("", "green").tenant.weight == 1.0
    settings = TenantsSettings(header="x-team", trusted=True, tenants=(TenantSettings("default", weight=4.0),))
    tenants.use(Roster.make(settings))
    assert tenants.find("", "green").tenant.weight == 4.0
