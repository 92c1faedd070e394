"""Finds who sends a request, by its key or by a trusted header, in constant time.

A key is looked up by its SHA-256: one hash and one look-up in a dictionary, however many keys there are. Its time tells
nothing of the keys, since nobody can choose the beginning of a digest. No key is kept, only digests are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from gateway.errors import NotLoaded, Unauthorized
from gateway.framework import Clock
from gateway.tenants.header_tenants import HeaderTenants
from gateway.tenants.identity import Caller
from gateway.tenants.limit_settings import PriceSettings
from gateway.tenants.settings import (
    DEFAULT,
    HEADER,
    OTHER,
    TenantKeySettings,
    TenantSettings,
    TenantsFileSettings,
    TenantsSettings,
)

NOTHING = TenantsFileSettings()

LOADING_RETRY = 2.0
"""Seconds in ``Retry-After`` until the keys' server has been asked again: see ``valkey_keys.FIRST_PAUSE``."""


def digest(key: str) -> bytes:
    """The SHA-256 of a key as it was sent."""
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


@dataclass(frozen=True, slots=True, eq=False)
class Roster:
    """Who there is, at one moment. ``entries``: the keys of tenants by their digest. ``plain_keys``: digests of keys
    without a tenant of their own. ``tenants``, ``callers``: by name. ``header``: in lower case, the header that names
    tenants, if it is ``trusted``; empty: there is none. ``wanted``: whether a request needs a key. ``complete``: false
    until the server that keeps the keys has been read once."""

    entries: Mapping[bytes, TenantKeySettings]
    plain_keys: frozenset[bytes]
    tenants: Mapping[str, TenantSettings]
    callers: Mapping[str, Caller]
    prices: Mapping[str, PriceSettings]
    header: str
    trusted: bool
    wanted: bool
    complete: bool
    _with_key: dict[bytes, Caller] = field(default_factory=dict)

    @classmethod
    def make(
        cls,
        settings: TenantsSettings,
        client_keys: Iterable[bytes] = (),
        found: TenantsFileSettings = NOTHING,
        *,
        complete: bool = True,
    ) -> Roster:
        """``client_keys``: digests of keys without a tenant. ``found``: what the file or the server has, beside what
        ``settings`` has; of one name the latter counts. A key whose tenant there is not is no key."""
        tenants = {one.name: one for one in (TenantSettings(DEFAULT), *found.tenants, *settings.tenants)}
        objectives = settings.objectives
        callers = {name: Caller.of(one, objectives=objectives) for name, one in tenants.items()}
        if OTHER not in callers:
            callers[OTHER] = Caller.of(tenants[DEFAULT], name=OTHER, label=OTHER, objectives=objectives)
        entries = {bytes.fromhex(one.sha256): one for one in (*found.keys, *settings.keys) if one.tenant in tenants}
        plain_keys = frozenset(client_keys)
        return cls(
            *(entries, plain_keys, tenants, callers, {**found.prices, **settings.prices}),
            header="" if settings.header is None else settings.header.lower(),
            trusted=settings.header is not None and settings.trusted,
            wanted=settings.wants_keys or (bool(plain_keys) and not settings.anonymous),
            complete=complete,
        )

    def with_key(self, digest: bytes) -> Caller | None:
        """The caller whose key has this digest; None: it is no key of a tenant. Made when it is first asked for: of ten
        thousand keys few are in use."""
        caller = self._with_key.get(digest)
        if caller is None and (entry := self.entries.get(digest)) is not None:
            caller = self._with_key[digest] = self.callers[entry.tenant].with_key(entry)
        return caller

    def of_header(self, name: str) -> Caller:
        """The caller of a tenant that only a header names."""
        settings, objectives = self.tenants[DEFAULT], self.callers[DEFAULT].objectives
        return Caller.of(settings, name=name, label=HEADER, objectives=objectives)


class Directory:
    """Finds callers in the roster that is in force."""

    def __init__(self, roster: Roster, clock: Clock) -> None:
        self._clock = clock
        self.roster = roster
        self.named = HeaderTenants(clock, lambda name: self.roster.of_header(name))
        self.plain = False
        """Every request is from ``anyone``: neither keys nor headers are looked at."""
        self.use(roster)

    def use(self, roster: Roster) -> None:
        """Find callers in ``roster`` from now on. What was found before stays as it is until its request ends."""
        self.roster = roster
        self.anyone = roster.callers[DEFAULT]
        self.plain = not (roster.wanted or roster.entries or roster.plain_keys or roster.header)
        self.named.renew()

    def find(self, key: str, name: str) -> Caller:
        """Who sends a request with this ``key`` and this ``name`` in the tenants' header; each is empty if it is not
        given, or not trusted. Raises Unauthorized; NotLoaded while it is not known whether the key is valid."""
        roster = self.roster
        if key or roster.wanted:
            hashed = digest(key)
            caller = roster.with_key(hashed)
            if caller is not None and caller.expires > self._clock.wall():
                return caller
            if roster.wanted and hashed not in roster.plain_keys:
                raise self._refusal(key, expired=caller is not None)
        return self._of_header(name) if name else self.anyone

    def _refusal(self, key: str, *, expired: bool) -> Unauthorized | NotLoaded:
        if expired:
            return Unauthorized("This API key has expired: ask who runs this gateway for another one.")
        if key and not self.roster.complete:
            return NotLoaded("The API keys are not loaded yet; try again.", retry_after=LOADING_RETRY)
        return Unauthorized("A valid API key is needed: send it as 'Authorization: Bearer KEY'.")

    def tenant(self, name: str) -> Caller:
        """The caller of a tenant, known or not, which is not known or in use for that; the default one's for ``""``."""
        roster = self.roster
        return (roster.callers.get(name) or roster.of_header(name)) if name else self.anyone

    def _of_header(self, name: str) -> Caller:
        roster = self.roster
        return roster.callers.get(name) or self.named.find(name) or roster.callers[OTHER]
