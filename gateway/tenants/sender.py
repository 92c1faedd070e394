"""Reads who a request says it is from, off its head: its API key, and the header that names its tenant."""

from __future__ import annotations

from collections.abc import Mapping

from multidict import MultiMapping

from gateway.errors import ClientError
from gateway.tenants.directory import Directory
from gateway.tenants.identity import Caller

BEARER = "bearer "


def given_key(headers: Mapping[str, str]) -> str:
    """The key that is sent as ``Authorization: Bearer`` or, as Anthropic's clients do, ``x-api-key``; empty: none."""
    authorization = headers.get("Authorization", "")
    if authorization[: len(BEARER)].lower() == BEARER:
        return authorization[len(BEARER) :].strip()
    return headers.get("x-api-key", "").strip()


def caller_of(headers: MultiMapping[str], directory: Directory) -> Caller:
    """Who sends a request with these headers. Raises Unauthorized, NotLoaded; ClientError where the tenants' header is
    given more than once: a client may have sent one before the proxy added its own."""
    if not directory.roster.trusted:
        return directory.find(given_key(headers), "")
    name = directory.roster.header
    values = headers.getall(name, [])
    if len(values) > 1:
        raise ClientError(f"The header {name} is given more than once: the proxy must replace it.", param=name)
    return directory.find(given_key(headers), values[0].strip() if values else "")
