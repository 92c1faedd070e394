from __future__ import annotations

import hashlib

import pytest

from gateway.errors import ClientError, NotFound
from gateway.tenants.changes import KEEP, add, moment, new_key, plain, put_tenant, revoke, rotate
from gateway.tenants.limit_settings import BudgetSettings, LimitSettings
from gateway.tenants.settings import TenantKeySettings, TenantSettings, TenantsFileSettings, expiry

RED = TenantSettings("red")
ONE, TWO, THREE = "11" * 32, "22" * 32, "33" * 32


def key(key_id: str, sha256: str, **values) -> TenantKeySettings:
    return TenantKeySettings(key_id, sha256, "red", **values)


CONTENT = TenantsFileSettings((RED,), (key("ci", ONE, models=("a*",)),))


def test_a_new_key_is_random_and_only_its_digest_is_kept():
    made = [new_key() for _ in range(100)]
    assert len({text for text, _ in made}) == 100
    for text, sha256 in made:
        assert text.startswith("kvg-")
        assert len(text) == 4 + 43
        assert hashlib.sha256(text.encode()).hexdigest() == sha256


def test_a_key_is_added():
    after = add(key("web", TWO))(CONTENT).applied(CONTENT)
    assert [one.id for one in after.keys] == ["ci", "web"]
    assert after.tenants == CONTENT.tenants


def test_an_id_is_given_once_and_its_tenant_must_be_there():
    with pytest.raises(ClientError, match="rotate"):
        add(key("ci", TWO))(CONTENT)
    with pytest.raises(ClientError, match="no tenant 'blue'"):
        add(TenantKeySettings("web", TWO, "blue"))(CONTENT)
    made = add(TenantKeySettings("web", TWO, "blue"), create_tenant=True)(CONTENT).applied(CONTENT)
    assert [one.name for one in made.tenants] == ["red", "blue"]
    assert add(TenantKeySettings("web", TWO, "default"))(CONTENT).tenants == ()


def test_all_keys_of_an_id_are_revoked():
    content = TenantsFileSettings((RED,), (key("ci", ONE), key("web", TWO), key("ci", THREE)))
    assert [one.sha256 for one in revoke("ci")(content).applied(content).keys] == [TWO]
    with pytest.raises(NotFound):
        revoke("none")(content)


def test_a_key_that_is_rotated_stays_valid_for_a_day():
    after = rotate("ci", TWO, now=1000.0)(CONTENT).applied(CONTENT)
    old, new = after.keys
    assert (old.sha256, expiry(old.expires)) == (ONE, 1000.0 + KEEP)
    assert (new.sha256, new.id, new.tenant, new.models, new.expires) == (TWO, "ci", "red", ("a*",), None)


def test_a_key_that_ends_before_is_not_made_to_last_and_the_new_one_ends_as_the_last():
    content = TenantsFileSettings((RED,), (key("ci", ONE, expires="1970-01-01T00:00:10"), key("ci", TWO)))
    after = rotate("ci", THREE, now=0.0, keep=60.0)(content).applied(content)
    assert [one.ends for one in after.keys] == [10.0, 60.0, float("inf")]


def test_a_tenant_is_replaced_where_it_stands():
    content = TenantsFileSettings((RED, TenantSettings("blue")))
    after = put_tenant(TenantSettings("red", weight=2.0))(content).applied(content)
    assert [(one.name, one.weight) for one in after.tenants] == [("red", 2.0), ("blue", 1.0)]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("90s", "1970-01-01T00:01:30Z"),
        ("5m", "1970-01-01T00:05:00Z"),
        ("12h", "1970-01-01T12:00:00Z"),
        ("30d", "1970-01-31T00:00:00Z"),
        ("1w", "1970-01-08T00:00:00Z"),
        ("2027-01-31", "2027-01-31"),
        ("0d", "0d"),
        ("soon", "soon"),
    ],
)
def test_an_end_is_a_moment_or_a_span(text, at):
    assert moment(text, 0.5) == at


def test_settings_are_shown_without_their_defaults():
    tenant = TenantSettings(
        "red",
        bands=(-1, 2),
        limits=LimitSettings(concurrent=4),
        per_model={"a*": LimitSettings(queued=1)},
        budget=BudgetSettings(5.0),
    )
    assert plain(tenant) == {
        "name": "red",
        "bands": [-1, 2],
        "limits": {"concurrent": 4},
        "per_model": {"a*": {"queued": 1}},
        "budget": {"amount": 5.0},
    }
    assert plain(key("ci", ONE)) == {"id": "ci", "sha256": ONE, "tenant": "red"}
