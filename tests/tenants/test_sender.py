from __future__ import annotations

import hashlib

import pytest
from multidict import CIMultiDict

from gateway.core.clock import ManualClock
from gateway.errors import ClientError, Unauthorized
from gateway.tenants.directory import Directory, Roster
from gateway.tenants.sender import caller_of, given_key
from gateway.tenants.settings import TenantKeySettings, TenantSettings, TenantsSettings


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({}, ""),
        ({"Authorization": "Bearer one"}, "one"),
        ({"authorization": "bEaReR  one "}, "one"),
        ({"Authorization": "Bearer"}, ""),
        ({"Authorization": "Basic one"}, ""),
        ({"Authorization": "Basic one", "X-Api-Key": "two"}, "two"),
        ({"x-api-key": " two "}, "two"),
        ({"Authorization": "Bearer one", "x-api-key": "two"}, "one"),
    ],
    ids=str,
)
def test_the_key_that_is_sent(headers, key):
    assert given_key(CIMultiDict(headers)) == key


def directory(**values) -> Directory:
    red = TenantSettings("red")
    key = TenantKeySettings("ci", hashlib.sha256(b"kvg-one").hexdigest(), "red")
    return Directory(Roster.make(TenantsSettings(tenants=(red,), keys=(key,), **values)), ManualClock())


def test_a_request_is_its_key_s():
    assert caller_of(CIMultiDict({"Authorization": "Bearer kvg-one"}), directory()).key == "ci"
    with pytest.raises(Unauthorized):
        caller_of(CIMultiDict({"X-Team": "red"}), directory(header="x-team", trusted=True))


def test_a_header_counts_only_where_it_is_trusted():
    headers = CIMultiDict({"X-Team": "red"})
    trusted = directory(header="x-team", trusted=True, anonymous=True)
    assert caller_of(headers, trusted).tenant.name == "red"
    assert caller_of(headers, directory(header="x-team", anonymous=True)).tenant.name == "default"
    assert caller_of(CIMultiDict({"X-Team": "  "}), trusted).tenant.name == "default"


def test_a_header_that_a_client_added_to_the_proxy_s_is_not_believed():
    headers = CIMultiDict([("X-Team", "blue"), ("x-team", "red")])
    with pytest.raises(ClientError, match="x-team is given more than once"):
        caller_of(headers, directory(header="x-team", trusted=True, anonymous=True))
