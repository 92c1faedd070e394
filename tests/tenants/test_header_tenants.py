from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import ManualClock
from gateway.tenants.header_tenants import IDLE, MOST, HeaderTenants
from gateway.tenants.identity import Caller
from gateway.tenants.settings import TenantSettings


def make(name: str) -> Caller:
    return Caller.of(TenantSettings("default"), name=name, label="header")


def test_one_tenant_is_one_object_while_it_is_in_use():
    tenants = HeaderTenants(ManualClock(), make)
    assert tenants.find("red") is tenants.find("red") is not tenants.find("blue")


def test_a_million_names_keep_no_more_than_a_thousand():
    tenants = HeaderTenants(ManualClock(), make)
    found = sum(tenants.find(str(number)) is not None for number in range(20 * MOST))
    assert found == len(tenants) == MOST


def test_who_is_idle_makes_room_and_who_is_not_stays():
    clock = ManualClock()
    tenants = HeaderTenants(clock, make, most=2)
    used = tenants.find("used")
    tenants.find("idle")
    clock.now += IDLE / 2
    assert tenants.find("used") is used
    clock.now += IDLE / 2
    assert tenants.find("new") is not None
    assert tenants.find("used") is used
    assert tenants.find("idle") is None


@pytest.mark.parametrize("name", ["a" * 65, "line\nfeed", "\x00"])
def test_a_name_that_cannot_be_shown_is_not_kept(name):
    tenants = HeaderTenants(ManualClock(), make)
    assert tenants.find(name) is None
    assert len(tenants) == 0


def test_a_new_configuration_makes_all_anew():
    weights = [1.0]
    tenants = HeaderTenants(ManualClock(), lambda name: Caller.of(TenantSettings(name, weight=weights[-1])))
    tenants.find("red")
    weights.append(2.0)
    tenants.renew()
    assert tenants.find("red").tenant.weight == 2.0


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0.0, 2.0))))
def test_it_keeps_who_was_last_used_within_the_time(requests):
    """Against a plain list of all that was seen."""
    clock, seen = ManualClock(), {}
    tenants = HeaderTenants(clock, make, most=3, idle=3.0)
    for number, pause in requests:
        clock.now += pause
        now, name = clock.monotonic(), str(number)
        if name not in seen:
            seen = {other: at for other, at in seen.items() if now - at < 3.0}
        room = name in seen or len(seen) < 3
        assert (tenants.find(name) is not None) is room
        if room:
            seen[name] = now
        assert len(tenants) == len(seen)
