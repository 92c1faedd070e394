"""The engines that a configuration names, as hosts of Envoy's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway.commands.envoy.wanted import Address
from gateway.config.settings import Config, ModelSettings
from gateway.discovery.settings import DiscoverSettings
from gateway.errors import ConfigError
from gateway.fleet.settings import EndpointSettings, TlsSettings


@dataclass(frozen=True, slots=True)
class Host:
    """An engine, or all addresses of a name of DNS. ``tls``: None: plain HTTP. ``by_choice``: only the picker's choice
    leads there."""

    address: Address
    tls: TlsSettings | None
    by_choice: bool


def listed(config: Config) -> bool:
    """Whether all engines can be named beforehand: none comes or goes that only the picker would know."""
    return all(hosts_of(model) and all(map(_is_name, model.discover)) for model in config.models)


def hosts_of(model: ModelSettings) -> list[Host]:
    """Those that can be named. Raises ConfigError: an engine that listens at no port."""
    return [
        *(_of_endpoint(one) for one in model.endpoints),
        *(_of_name(one) for one in model.discover if _is_name(one)),
    ]


def split_proxy(config: Config) -> Host | None:
    """The proxy of kvgate to which a picker sends what is to be split; None: there is none."""
    if config.epp is None or config.epp.split in (None, "headers"):
        return None
    # Mostly ourselves: who serves with a certificate for clients has none for this address.
    tls = None if config.listen.tls is None else TlsSettings(verify=False)
    return Host(Address.parse(str(config.epp.split)), tls, by_choice=True)


def one_fleet(models: Sequence[ModelSettings]) -> bool:
    """Whether all models have the same engines, so that Envoy need not know which of them is asked."""
    return len({frozenset(host.address for host in hosts_of(model)) for model in models}) == 1


def keys_of(models: Sequence[ModelSettings]) -> set[str | None]:
    """What engines want to be sent; None: nothing."""
    fixed = {one.api_key for model in models for one in model.endpoints}
    return fixed | {one.api_key for model in models for one in model.discover}


def needs_tls(model: ModelSettings) -> bool:
    """Whether an engine of its own, or one that is found, speaks TLS."""
    return any(host.tls is not None for host in hosts_of(model)) or any(one.scheme == "https" for one in model.discover)


def _of_endpoint(endpoint: EndpointSettings) -> Host:
    parts = urlsplit(endpoint.url)
    if parts.hostname is None:
        raise ConfigError(f"{endpoint.url}: Envoy follows a choice by its ip:port, which a Unix socket has not")
    secure = parts.scheme.lower() == "https"
    # A prefill engine answers with one token, and where a drain is wanted nothing new goes: Envoy knows neither.
    by_choice = endpoint.role == "prefill" or endpoint.drain
    address = Address(parts.hostname, parts.port or (443 if secure else 80))
    return Host(address, (endpoint.tls or TlsSettings()) if secure else None, by_choice)


def _is_name(source: DiscoverSettings) -> bool:
    """Whether Envoy can look it up as we do."""
    return source.dns is not None and source.dns.port is not None and source.dns.nameserver is None


def _of_name(source: DiscoverSettings) -> Host:
    assert source.dns is not None
    assert source.dns.port is not None
    tls = (source.tls or TlsSettings()) if source.scheme == "https" else None
    return Host(Address(source.dns.name.rstrip("."), source.dns.port), tls, source.role == "prefill")
