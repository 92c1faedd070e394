from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tenants.identity import ANYONE, Caller, Patterns
from gateway.tenants.limit_settings import LimitSettings
from gateway.tenants.settings import TenantKeySettings, TenantSettings


@pytest.mark.parametrize(
    ("patterns", "name", "found"),
    [
        ((), "qwen", False),
        (("*",), "qwen", True),
        (("qwen",), "qwen", True),
        (("qwen",), "qwen3", False),
        (("qwen*",), "qwen", True),
        (("qwen*",), "qwen3-32b", True),
        (("qwen*",), "Qwen3", False),
        (("llama", "qwen*"), "llama", True),
        (("llama", "qwen*"), "llama3", False),
    ],
)
def test_a_pattern_is_a_name_or_how_names_begin(patterns, name, found):
    assert (name in Patterns(patterns)) is found


@given(st.lists(st.text("ab", max_size=3).flatmap(lambda name: st.sampled_from([name, name + "*"]))), st.text("ab"))
def test_patterns_find_what_one_of_them_finds(patterns, name):
    expected = any(name == one or (one.endswith("*") and name.startswith(one[:-1])) for one in patterns)
    assert (name in Patterns(patterns)) is expected


def test_a_key_allows_no_model_that_its_tenant_does_not():
    tenant = Caller.of(TenantSettings("red", models=("qwen*", "llama")))
    key = tenant.with_key(TenantKeySettings("ci", "00" * 32, "red", models=("qwen3", "mistral")))
    assert [name for name in ("qwen3", "qwen2", "llama", "mistral") if key.may_use(name)] == ["qwen3"]
    assert [name for name in ("qwen3", "qwen2", "llama", "mistral") if tenant.may_use(name)] == [
        *("qwen3", "qwen2", "llama")
    ]


def test_a_key_is_its_tenant_s_with_limits_of_its_own():
    settings = TenantSettings("red", weight=2.0, band=1, bands=(-1, 3))
    limits = LimitSettings(concurrent=4)
    caller = Caller.of(settings).with_key(
        TenantKeySettings("ci", "00" * 32, "red", expires="1970-01-01T00:01:00", limits=limits)
    )
    assert (caller.tenant.name, caller.tenant.weight, caller.label, caller.key) == ("red", 2.0, "red", "ci")
    assert (caller.band, caller.bands, caller.expires) == (1, (-1, 3), 60.0)
    assert (caller.settings, caller.key_limits) == (settings, limits)


@pytest.mark.parametrize(("wanted", "given"), [(-5, -1), (-1, -1), (0, 0), (3, 3), (4, 3)])
def test_a_band_is_held_within_the_bounds(wanted, given):
    assert Caller.of(TenantSettings("red", bands=(-1, 3))).clamp(wanted) == given


def test_a_tenant_without_bounds_has_its_band_whatever_is_asked_for():
    caller = Caller.of(TenantSettings("red", band=2))
    assert {caller.clamp(band) for band in (-9, 0, 2, 9)} == {2}


def test_where_nothing_is_configured_all_is_allowed():
    assert ANYONE.tenant.name == "default"
    assert ANYONE.may_use("anything")
    assert ANYONE.clamp(5) == 0
