"""Finds who sends a request, by its key or by a trusted header, in constant time.

A key is looked up by its SHA-256: one hash and one look-up in a dictionary, however many keys there are. Its time tells
nothing of the keys, since nobody can choose the beginning of a digest. No key is kept, only digests are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
    """Who there is, at one moment. ``entries``: all keys of tenants. ``tenants``: by name. ``keys``: callers by the
    digest of their key. ``header``: in lower case, the header that names tenants; empty: none is trusted. ``wanted``:
    whether a request needs a key. ``complete``: false until the server that keeps the keys has been read once."""

    entries: tuple[TenantKeySettings, ...]
    tenants: Mapping[str, TenantSettings]
    prices: Mapping[str, PriceSettings]
    objectives: Mapping[str, int]
    keys: Mapping[bytes, Caller]
    callers: Mapping[str, Caller]
    header: str
    wanted: bool
    complete: bool = True

    @classmethod
    def make(
        cls,
        settings: TenantsSettings,
        client_keys: Iterable[str] = (),
        found: TenantsFileSettings = NOTHING,
        *,
        complete: bool = True,
    ) -> Roster:
        """``client_keys``: keys without a tenant of their own. ``found``: what the file or the server has, beside what
        ``settings`` has; of one name the latter counts. A key whose tenant there is not is no key."""
        default = TenantSettings(DEFAULT)
        tenants = {one.name: one for one in (default, *found.tenants, *settings.tenants)}
        callers = {name: Caller.of(one) for name, one in tenants.items()}
        if OTHER not in callers:
            callers[OTHER] = Caller.of(tenants[DEFAULT], name=OTHER, label=OTHER)
        keys = {digest(key): callers[DEFAULT] for key in client_keys}
        wanted = bool(keys) and not settings.anonymous
        entries = tuple(one for one in (*settings.keys, *found.keys) if one.tenant in tenants)
        for entry in reversed(entries):
            keys[bytes.fromhex(entry.sha256)] = callers[entry.tenant].with_key(entry)
        header = settings.header.lower() if settings.header is not None and settings.trusted else ""
        return cls(
            *(entries, tenants, {**found.prices, **settings.prices}, settings.objectives, keys, callers, header),
            wanted=wanted or settings.wants_keys,
            complete=complete,
        )

    def of_header(self, name: str) -> Caller:
        """The caller of a tenant that only a header names."""
        return Caller.of(self.tenants[DEFAULT], name=name, label=HEADER)


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
        self.plain = not (roster.wanted or roster.keys or roster.header)
        self.named.renew()

    def find(self, key: str, name: str) -> Caller:
        """Who sends a request with this ``key`` and this ``name`` in the tenants' header; each is empty if it is not
        given, or not trusted. Raises Unauthorized; NotLoaded while it is not known whether the key is valid."""
        roster = self.roster
        found = roster.keys.get(digest(key)) if key else None
        if found is not None and found.key is not None:
            if found.expires > self._clock.wall():
                return found
            if roster.wanted:
                raise Unauthorized("This API key has expired: ask who runs this gateway for another one.")
        elif found is None and roster.wanted:
            if key and not roster.complete:
                raise NotLoaded("The API keys are not loaded yet; try again.", retry_after=LOADING_RETRY)
            raise Unauthorized("A valid API key is needed: send it as 'Authorization: Bearer KEY'.")
        return self._of_header(name) if name else self.anyone

    def _of_header(self, name: str) -> Caller:
        roster = self.roster
        return roster.callers.get(name) or self.named.find(name) or roster.callers[OTHER]
