from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tenants.limit_settings import BudgetSettings, LimitSettings
from gateway.tenants.settings import TenantKeySettings, TenantSettings
from gateway.tenants.valkey_records import Names, from_hash, to_hash

LIMITS = st.builds(LimitSettings, *[st.none() | st.integers(1, 10**12)] * 5)
PATTERNS = st.lists(st.sampled_from(["*", "qwen*", "a b", "null", "1"]), max_size=3).map(tuple)
KEYS = st.builds(
    TenantKeySettings,
    st.sampled_from(["ci", "1", "true"]),
    st.integers(0, 2**256 - 1).map(lambda number: f"{number:064x}"),
    st.sampled_from(["red", "2"]),
    st.sampled_from([None, "2027-01-01"]),
    st.none() | PATTERNS,
    LIMITS,
)
TENANTS = st.builds(
    TenantSettings,
    st.sampled_from(["red", "1e3", "null"]),
    st.floats(0.001, 1e6),
    st.just(0),
    st.sampled_from([None, (-3, 3)]),
    PATTERNS,
    LIMITS,
    st.dictionaries(st.sampled_from(["a", "b*"]), LIMITS),
    st.none() | st.builds(BudgetSettings, st.floats(0.1, 1e9), st.just("money"), st.sampled_from(["day", "total"])),
)


@given(KEYS | TENANTS)
def test_what_is_written_is_read_again(settings):
    written = to_hash(settings)
    assert all(isinstance(value, str) for value in written.values())
    assert from_hash(type(settings), written) == settings


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"id": "ci", "sha256": "12", "tenant": "red"},
        {"id": "ci", "sha256": "11" * 32, "tenant": "red", "models": "["},
        {"id": "ci", "sha256": "11" * 32, "tenant": "red", "models": "5"},
        {"id": "ci", "sha256": "11" * 32, "tenant": "red", "limits": '{"concurrent": "4"}'},
        {"id": "ci", "sha256": "11" * 32, "tenant": "red", "limits": '{"concurrent": 0}'},
    ],
    ids=str,
)
def test_what_is_no_key_is_refused(wrong):
    with pytest.raises(ValueError, match=r"\w"):
        from_hash(TenantKeySettings, wrong)


def test_what_a_later_version_adds_is_no_fault():
    values = {"id": "ci", "sha256": "11" * 32, "tenant": "red", "colour": '"red"'}
    assert from_hash(TenantKeySettings, values).id == "ci"


def test_names_are_of_one_scope():
    one, other = Names("one"), Names("other")
    names = ("key", "tenant", "keys", "tenants", "version", "changed")
    assert not {getattr(one, name) for name in names} & {getattr(other, name) for name in names}
    assert one.key == "kvgate:one:key:"
