"""``kvgate check``: warns of tenants and keys that are valid and will disappoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from gateway.config.settings import Config
from gateway.framework import Clock
from gateway.tenancy import store_of
from gateway.tenants.changes import StoreFailed
from gateway.tenants.identity import Patterns
from gateway.tenants.settings import TenantsFileSettings, TenantsSettings


async def of_tenants(config: Config, clock: Clock) -> list[str]:
    """The warnings, each with its remedy. Asks Valkey, if tenants and keys are there."""
    settings, store = config.tenants, store_of(config)
    warnings = list(_of_header(settings))
    found = TenantsFileSettings()
    if store is not None:
        try:
            found = await store.read()
        except StoreFailed as error:
            return [*warnings, f"tenants: {error.message}; until it can be read, no key in it is valid"]
    every = replace(
        found,
        tenants=(*settings.tenants, *found.tenants),
        keys=(*settings.keys, *found.keys),
        prices={**found.prices, **settings.prices},
    )
    return [*warnings, *_of_keys(config, every, clock), *_of_patterns(config, every), *_of_money(config, every)]


def _of_header(settings: TenantsSettings) -> Iterator[str]:
    if settings.header is not None and not settings.trusted:
        yield (
            f"tenants.header is {settings.header}, but tenants.trusted is false: the header is not read; set trusted "
            "if all clients come through a proxy of yours that sets it"
        )
    if settings.trusted and settings.header is None:
        yield "tenants.trusted is true, but there is no tenants.header to trust: name it"


def _of_keys(config: Config, every: TenantsFileSettings, clock: Clock) -> Iterator[str]:
    now = clock.wall()
    valid = [key for key in every.keys if key.ends > now]
    for key in every.keys:
        if key.ends <= now and all(one.id != key.id for one in valid):
            yield f"tenants: the key {key.id} has ended on {key.expires}: revoke it, or rotate it in time"
    keys_of_today = config.client_keys.values or config.client_keys.file
    if config.tenants.wants_keys and not valid and not keys_of_today:
        yield "tenants: no key is valid, so that nobody gets in: make one with `kvgate keys add`"


def _of_patterns(config: Config, every: TenantsFileSettings) -> Iterator[str]:
    """Adapters are known only from the engines, so that a name of one may be meant."""
    names = [name for model in config.models for name in (model.name, *model.aliases)]
    if "*" in names:  # any name may be meant
        return
    given: list[tuple[str, Iterable[str]]] = [("tenants.prices", every.prices)]
    for tenant in every.tenants:
        given += [(f"the tenant {tenant.name}: models", tenant.models)]
        given += [(f"the tenant {tenant.name}: per_model", tenant.per_model)]
    given += [(f"the key {key.id}: models", key.models or ()) for key in every.keys]
    for where, patterns in given:
        for pattern in patterns:
            one = Patterns([pattern])
            if not any(name in one for name in names):
                yield f"{where}: {pattern!r} is no model or alias: correct it, unless an adapter has such a name"


def _of_money(config: Config, every: TenantsFileSettings) -> Iterator[str]:
    priced = Patterns(every.prices)
    for tenant in every.tenants:
        if tenant.budget is None or tenant.budget.unit != "money":
            continue
        may_use = Patterns(tenant.models)
        free = [one.name for one in config.models if one.name in may_use and one.name not in priced]
        if free:
            yield (
                f"the tenant {tenant.name} has a budget in money, but {', '.join(free)} costs nothing: give it a price "
                "in tenants.prices"
            )
