"""Settings of who a request is: tenants, their keys, and where these are kept."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import unquote, urlsplit

from gateway.tenants.limit_settings import BudgetSettings, LimitSettings, PriceSettings

BANDS = (-10, 10)
"""The lowest and the highest priority band. Each band is a value of a metric's label, so there are few."""

DEFAULT = "default"
"""The tenant of a request that names no other."""
OTHER = "other"
"""The tenant of all requests whose header names one more tenant than are kept."""
HEADER = "header"
"""The word in metrics for all tenants that only a header names."""

MAX_NAME = 64
"""The most characters of a tenant's name or a key's id: they are in metrics, log lines and paths of the admin API."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 section 5.6.2
_SCOPE = re.compile(r"[A-Za-z0-9._-]+")

CARRIERS = frozenset({"authorization", "x-api-key", "api-key", "cookie", "host", "content-length", "content-type"})
"""Headers with a meaning of their own, which can name no tenant."""


def check_name(name: str, what: str) -> None:
    """Raises ValueError unless ``name`` can stand in a metric's label, a log line and a URL's path as it is."""
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise ValueError(
            f"{what} must be 1 to {MAX_NAME} letters, digits or any of . _ @ -, and begin with a letter or digit"
        )


def check_patterns(patterns: tuple[str, ...], what: str) -> None:
    """Raises ValueError unless each is a name, or the beginning of names followed by ``*``."""
    for pattern in patterns:
        if not pattern or "*" in pattern[:-1]:
            raise ValueError(f"{what} has {pattern!r}: write a model's name, or how names begin and then one *")


def expiry(text: str) -> float:
    """The time at which a key ends, in seconds since the epoch, of an ISO 8601 date or time. A date means its first
    moment; without an offset it is UTC. Raises ValueError."""
    when = datetime.fromisoformat(text)
    return (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()


@dataclass(frozen=True, slots=True)
class TenantSettings:
    """``weight``: its share of an engine's time against that of others in the same band, above 0.

    ``band``: the priority band of its requests: a higher one is served first, and below 0 is sheddable. ``bands``: the
    lowest and the highest band that its requests may ask for; None: they have ``band``, whatever they ask for.
    ``models``: names of models, aliases and adapters that it may use; ``name*``: all that begin so. To any other name
    the answer is as if there were no such model. ``limits``: of all its requests together. ``per_model``: further
    limits by model name or ``name*``; the exact name counts, else the longest beginning, and both must allow a request.
    """

    name: str
    weight: float = 1.0
    band: int = 0
    bands: tuple[int, ...] | None = None
    models: tuple[str, ...] = ("*",)
    limits: LimitSettings = field(default_factory=LimitSettings)
    per_model: Mapping[str, LimitSettings] = field(default_factory=dict)
    budget: BudgetSettings | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        if self.name == HEADER:
            raise ValueError(f"name must not be {HEADER!r}: in metrics this is the word for tenants of a header")
        if not 0 < self.weight <= 1e6:
            raise ValueError("weight must be above 0 and at most 1e6")
        low, high = BANDS
        if self.bands is not None and (len(self.bands) != 2 or not low <= self.bands[0] <= self.bands[1] <= high):
            raise ValueError(f"bands must be [lowest, highest], both in {low}..{high}")
        if not low <= self.band <= high:
            raise ValueError(f"band must be in {low}..{high}")
        if self.bands is not None and not self.bands[0] <= self.band <= self.bands[1]:
            raise ValueError("band must be within bands")
        check_patterns(self.models, "models")
        check_patterns(tuple(self.per_model), "per_model")


@dataclass(frozen=True, slots=True)
class TenantKeySettings:
    """An API key, of which only the SHA-256 is kept. Several entries with one ``id`` are one key that is being
    replaced: all of them are valid, and share its limits.

    ``sha256``: of the key in UTF-8, 64 lower-case hexadecimal digits. ``expires``: a date or time in ISO 8601, from
    which it is not valid any more (UTC where no offset is given); None: never. ``models``: as for a tenant, and both
    must allow a model; None: all of its tenant. ``limits``: of the requests with this key, beside its tenant's.
    """

    id: str
    sha256: str
    tenant: str
    expires: str | None = None
    models: tuple[str, ...] | None = None
    limits: LimitSettings = field(default_factory=LimitSettings)

    def __post_init__(self) -> None:
        check_name(self.id, "id")
        if not _SHA256.fullmatch(self.sha256):
            raise ValueError("sha256 must be 64 lower-case hexadecimal digits: `kvgate keys add` makes them")
        if self.expires is not None:
            try:
                expiry(self.expires)
            except ValueError:
                raise ValueError("expires must be an ISO 8601 date or time, such as 2027-01-31") from None
        if self.models is not None:
            check_patterns(self.models, "models")

    @property
    def ends(self) -> float:
        """Seconds since the epoch from which it is not valid; infinite where it has no end."""
        return math.inf if self.expires is None else expiry(self.expires)


@dataclass(frozen=True, slots=True)
class TenantsFileSettings:
    """The content of ``tenants.file``, and the part of ``tenants`` in plugins.yaml that has the same keys.

    ``prices``: by model name or ``name*``, per million tokens; the exact name counts, else the longest beginning.
    """

    tenants: tuple[TenantSettings, ...] = ()
    keys: tuple[TenantKeySettings, ...] = ()
    prices: Mapping[str, PriceSettings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_patterns(tuple(self.prices), "prices")


@dataclass(frozen=True, slots=True)
class ValkeySettings:
    """A Valkey or Redis server (6 or later) that keeps tenants and keys for several gateways.

    ``url``: ``redis://`` or ``valkey://``, ``rediss://`` or ``valkeys://`` (TLS) or ``unix://``, with user and password
    where it wants them. ``scope``: which gateways share them: it is a part of every name on the server.
    """

    url: str = field(repr=False)
    scope: str = "default"

    def __post_init__(self) -> None:
        if not self.url.startswith(("redis://", "rediss://", "valkey://", "valkeys://", "unix://")):
            raise ValueError("url must begin with redis://, rediss://, valkey://, valkeys:// or unix://")
        if not _SCOPE.fullmatch(self.scope):
            raise ValueError("scope must be letters, digits or any of . _ -")

    @property
    def password(self) -> str | None:
        """The password in the URL, which must not appear in a log."""
        password = urlsplit(self.url).password
        return None if password is None else unquote(password)


@dataclass(frozen=True, slots=True)
class TenantsSettings(TenantsFileSettings):
    """Who a request is. The tenant is that of the key; else, if ``trusted``, the one that ``header`` names; else
    ``default``. A tenant that is not in the list has the settings of the one that is named ``default`` there.

    ``header``: the name of a request header. ``trusted``: whether it is believed: only where every client comes through
    a proxy that sets it. It goes to no engine. ``file``: a YAML file with ``tenants``, ``keys`` and ``prices``, read
    again when it changes. ``valkey``: a server that keeps tenants and keys; not together with ``file``. ``anonymous``:
    whether a request without a valid key is let through although keys are configured. ``objectives``: the band for each
    name that ``x-llm-d-inference-objective`` may have. ``admin_token``: what a client of the admin API of keys and
    tenants has to send; None: it is closed. ``state``: a file that keeps over a restart what was used, of
    budgets and of usage; None: each start begins at zero.
    """

    header: str | None = None
    trusted: bool = False
    file: str | None = None
    valkey: ValkeySettings | None = None
    anonymous: bool = False
    objectives: Mapping[str, int] = field(default_factory=dict)
    admin_token: str | None = field(default=None, repr=False)
    state: str | None = None

    def __post_init__(self) -> None:
        TenantsFileSettings.__post_init__(self)
        if self.header is not None:
            if not _FIELD_NAME.fullmatch(self.header):
                raise ValueError("header must be the name of a header")
            if self.header.lower() in CARRIERS:
                raise ValueError(f"header must not be {self.header.lower()!r}, which has a meaning of its own")
        if self.file == "":
            raise ValueError("file must not be empty")
        if self.state == "":
            raise ValueError("state must not be empty")
        if self.file is not None and self.valkey is not None:
            raise ValueError("file and valkey exclude each other: keys are kept in one place")
        if self.admin_token is not None and len(self.admin_token) < 16:
            raise ValueError("admin_token must have at least 16 characters")
        low, high = BANDS
        for name, band in self.objectives.items():
            if not low <= band <= high:
                raise ValueError(f"objectives: the band of {name!r} must be in {low}..{high}")

    @property
    def has_keys(self) -> bool:
        """Whether there may be keys, here or where they are kept."""
        return bool(self.keys) or self.file is not None or self.valkey is not None

    @property
    def wants_keys(self) -> bool:
        """Whether a request needs a key. Also where no key is left: who revokes the last one lets nobody in."""
        return self.has_keys and not self.anonymous
