"""Covers: gateway/tenants/settings.py."""

from __future__ import annotations

import math

import pytest

from gateway.tenants.settings import TenantKeySettings, TenantSettings, TenantsSettings, ValkeySettings

DIGEST = "9f" * 32


def key(**values):
    return TenantKeySettings(**{"id": "red-ci", "sha256": DIGEST, "tenant": "red", **values})


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "two words"},
        {"name": "a/b"},
        {"name": "-a"},
        {"name": "a" * 65},
        {"name": "header"},
        {"weight": 0.0},
        {"weight": -1.0},
        {"weight": 1e7},
        {"band": 11},
        {"band": -11},
        {"bands": (0,)},
        {"bands": (0, 1, 2)},
        {"bands": (1, 0)},
        {"bands": (-11, 0)},
        {"bands": (1, 2)},
        {"models": ("",)},
        {"models": ("a*b",)},
        {"models": ("**",)},
        {"per_model": {"a*b": None}},
    ],
    ids=str,
)
def test_a_tenant_that_cannot_be_is_refused_by_the_name_of_its_key(wrong):
    with pytest.raises(ValueError, match="^(band|" + next(iter(wrong)) + ") "):
        TenantSettings(**{"name": "red", **wrong})


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": ""},
        {"id": "a b"},
        {"sha256": DIGEST.upper()},
        {"sha256": DIGEST[:-1]},
        {"sha256": "kvg-not-a-digest"},
        {"expires": "tomorrow"},
        {"expires": "2027-13-01"},
        {"models": ("a*b",)},
    ],
    ids=str,
)
def test_a_key_that_cannot_be_is_refused_by_the_name_of_its_key(wrong):
    with pytest.raises(ValueError, match="^" + next(iter(wrong)) + " ") as refused:
        key(**wrong)
    assert "not-a-digest" not in str(refused.value), "somebody may have put the key itself there"


@pytest.mark.parametrize(
    ("expires", "ends"),
    [
        (None, math.inf),
        ("1970-01-02", 86400.0),
        ("1970-01-01T00:01:00", 60.0),
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01T01:00:00+01:00", 0.0),
    ],
)
def test_a_key_ends_at_a_moment(expires, ends):
    assert key(expires=expires).ends == ends


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"header": "x team"}, "header"),
        ({"header": "Authorization"}, "header"),
        ({"file": ""}, "file"),
        ({"file": "tenants.yaml", "valkey": ValkeySettings("redis://localhost")}, "file"),
        ({"admin_token": "short"}, "admin_token"),
        ({"objectives": {"batch": -11}}, "objectives"),
        ({"prices": {"a*b": None}}, "prices"),
    ],
)
def test_what_cannot_be_is_refused_by_the_name_of_its_key(wrong, name):
    with pytest.raises(ValueError, match=f"^{name}:? "):
        TenantsSettings(**wrong)


@pytest.mark.parametrize(("url", "scope", "name"), [("localhost:6379", "a", "url"), ("redis://x", "a b", "scope")])
def test_a_server_that_cannot_be_is_refused(url, scope, name):
    with pytest.raises(ValueError, match=f"^{name} "):
        ValkeySettings(url, scope)


def test_secrets_are_not_shown():
    shown = repr(TenantsSettings(admin_token="a-long-admin-token", valkey=ValkeySettings("redis://:secret@host")))
    assert "a-long-admin-token" not in shown
    assert "secret" not in shown


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, False),
        ({"header": "x-team", "trusted": True}, False),
        ({"tenants": (TenantSettings("red"),)}, False),
        ({"keys": (key(),)}, True),
        ({"file": "tenants.yaml"}, True),
        ({"valkey": ValkeySettings("redis://x")}, True),
        ({"file": "tenants.yaml", "anonymous": True}, False),
    ],
    ids=str,
)
def test_where_keys_may_be_one_is_needed_even_if_there_is_none_left(values, wanted):
    assert TenantsSettings(**values).wants_keys is wanted
