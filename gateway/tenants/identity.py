"""Who sends a request: what is known of it from its key or header, before its body is read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from gateway.framework import Tenant
from gateway.tenants.limit_settings import NO_LIMITS, LimitSettings
from gateway.tenants.settings import DEFAULT, TenantKeySettings, TenantSettings


class Patterns:
    """Names of models: exact ones, and beginnings that end in ``*``."""

    __slots__ = ("_beginnings", "_exact", "all")

    def __init__(self, patterns: Iterable[str]) -> None:
        given = tuple(patterns)
        self._exact = frozenset(pattern for pattern in given if not pattern.endswith("*"))
        self._beginnings = tuple(pattern[:-1] for pattern in given if pattern.endswith("*"))
        self.all = "*" in given
        """Whether every name is among them."""

    def __contains__(self, name: str) -> bool:
        return self.all or name in self._exact or name.startswith(self._beginnings)


EVERY = Patterns("*")
NO_OBJECTIVES: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Caller:
    """Who a request is from. One object for each key, and for each tenant that a header names: many requests share it.

    ``tenant``: its name and weight. ``label``: the tenant in metrics: its name if the configuration has it, else
    ``header`` or ``other``. ``settings``: what is configured for the tenant, limits and budget included; of one that is
    not, what is configured for ``default``. ``key``: the id of its key; None: it has none, or one of ``client_keys``.
    ``key_limits``: of all requests with this key. ``band``: where it asks for no other. ``bands``: the lowest and the
    highest that it may ask for. ``expires``: seconds since the epoch from which the key is not valid. ``objectives``:
    bands by the names that requests may give.
    """

    tenant: Tenant
    label: str
    settings: TenantSettings
    key: str | None = None
    key_limits: LimitSettings = NO_LIMITS
    band: int = 0
    bands: tuple[int, int] = (0, 0)
    expires: float = math.inf
    models: Patterns = EVERY
    key_models: Patterns = EVERY
    objectives: Mapping[str, int] = field(default_factory=dict)
    unrestricted: bool = field(init=False)
    """Whether it may use all models: looked at before ``may_use``, which then is not called."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "unrestricted", self.models.all and self.key_models.all)

    @classmethod
    def of(
        cls,
        settings: TenantSettings,
        *,
        name: str = "",
        label: str = "",
        objectives: Mapping[str, int] = NO_OBJECTIVES,
    ) -> Caller:
        """A caller without a key. ``name``, ``label``: where they are not the settings' name."""
        low, high = (settings.band, settings.band) if settings.bands is None else settings.bands
        return cls(
            Tenant(name or settings.name, settings.weight),
            label or settings.name,
            settings,
            band=settings.band,
            bands=(low, high),
            models=Patterns(settings.models),
            objectives=objectives,
        )

    def with_key(self, key: TenantKeySettings) -> Caller:
        """The same tenant, by ``key``."""
        return replace(
            self,
            key=key.id,
            key_limits=key.limits,
            expires=key.ends,
            key_models=EVERY if key.models is None else Patterns(key.models),
        )

    def may_use(self, name: str, model: str = "") -> bool:
        """Whether it may use what clients call ``name``: its tenant and its key must both allow it. ``model``: the
        model for which ``name`` is an alias; who may use one may use the other."""
        return (name in self.models or (model != "" and model in self.models)) and (
            name in self.key_models or (model != "" and model in self.key_models)
        )

    def clamp(self, band: int) -> int:
        """The allowed band that is nearest to ``band``."""
        low, high = self.bands
        return low if band < low else min(band, high)


ANYONE = Caller.of(TenantSettings(DEFAULT))
"""Who a request is from where neither keys nor tenants are configured."""
