"""The cluster of all engines: who is in it, how the picker's choice is followed, and what is done without one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from gateway.commands.envoy.fields import HTTP, Message, breakers, key_pair, kind_of, seconds, socket, trusted, typed
from gateway.commands.envoy.wanted import Address
from gateway.config.settings import Config, ModelSettings
from gateway.errors import ConfigError
from gateway.fleet.settings import EndpointSettings, TlsSettings

CLUSTER = "engines"

DESTINATION = "x-gateway-destination-endpoint"
"""Key of the choice in the metadata ``envoy.lb``: an ``ip:port``, or several, to be tried in this order."""

CHOICE: Message = {"key": "envoy.lb", "path": [{"key": DESTINATION}]}

POLICIES = "envoy.extensions.load_balancing_policies"

MATCH = "envoy.transport_socket_match"

KEEP_ALIVE = 4.0
"""Seconds that an idle connection is kept: below the 5 s after which uvicorn, vLLM's server, closes its end. A request
that meets the closing would be lost."""

BY_CHOICE = 1
"""The priority of hosts that only the picker's choice reaches; the fallback never leaves priority 0 while hosts of it
are healthy, and nothing says that one is not."""


def address_of(endpoint: EndpointSettings) -> Address:
    """Where its engine listens. Raises ConfigError: at no port."""
    parts = urlsplit(endpoint.url)
    if parts.hostname is None:
        raise ConfigError(f"{endpoint.url}: Envoy follows a choice by its ip:port, which a Unix socket has not")
    return Address(parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))


def come_and_go(models: Sequence[ModelSettings]) -> bool:
    """Whether there are engines that the configuration does not name: only the picker knows them, at run time."""
    return any(model.discover or not model.endpoints for model in models)


def one_fleet(models: Sequence[ModelSettings]) -> bool:
    """Whether all models have the same engines, so that Envoy need not know which of them is asked."""
    return (
        not come_and_go(models)
        and len({frozenset(address_of(one) for one in model.endpoints) for model in models}) == 1
    )


def same_keys(models: Sequence[ModelSettings]) -> bool:
    """Whether what the picker has made of a request for one engine is good for all."""
    return len({one.api_key for model in models for one in model.endpoints}) == 1


def engines_cluster(config: Config, *, system_ca: str, by_choice: Iterable[Address] = ()) -> Message:
    """``by_choice``: hosts beside the engines that a picker may name.
    Raises ConfigError."""
    if come_and_go(config.models):
        return _whatever_is_named(config)
    found = {address_of(one): one for model in config.models for one in model.endpoints}
    # A prefill engine answers with one token, and where a drain is wanted nothing new goes: the fallback knows neither.
    chosen = {address for address, one in found.items() if one.role == "prefill" or one.drain}
    chosen = chosen if len(chosen) < len(found) else set()
    contexts = _contexts(found, system_ca)
    groups: dict[int, list[Message]] = {0: [], BY_CHOICE: []}
    for address in found:
        host: Message = {"endpoint": {"address": socket(address)}}
        if address in contexts:
            host["metadata"] = {"filter_metadata": {MATCH: {"host": str(address)}}}
        groups[BY_CHOICE if address in chosen else 0].append(host)
    groups[BY_CHOICE] += [{"endpoint": {"address": socket(one)}} for one in by_choice if one not in found]
    cluster: Message = {
        **_base(config),
        **kind_of([*found, *by_choice]),
        "load_balancing_policy": {"policies": [{"typed_extension_config": _policy()}]},
        "load_assignment": {
            "cluster_name": CLUSTER,
            "endpoints": [{"priority": priority, "lb_endpoints": hosts} for priority, hosts in groups.items() if hosts],
        },
    }
    if contexts:
        cluster["transport_socket_matches"] = [
            {"name": str(address), "match": {"host": str(address)}, "transport_socket": socket_of}
            for address, socket_of in contexts.items()
        ]
    return cluster


def _whatever_is_named(config: Config) -> Message:
    """Envoy connects to the address that the picker names, whatever it is: it comes from metadata, which no client can
    set. No other is tried, and without a choice there is none. Raises ConfigError."""
    if config.epp is not None and config.epp.fallbacks:
        problem = "where engines come and go Envoy takes one address, and answers a list with 503: leave it at 0"
        raise config.origin.error(("epp", "fallbacks"), problem)
    urls = [one.url for model in config.models for one in model.endpoints]
    if any(url.lower().startswith("https") for url in urls) or any(
        source.scheme == "https" for model in config.models for source in model.discover
    ):
        raise ConfigError("where engines come and go Envoy cannot tell which of them speak TLS: let it be plain HTTP")
    return {
        **_base(config),
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "original_dst_lb_config": {"metadata_key": CHOICE},
    }


def _base(config: Config) -> Message:
    """What does not depend on how engines are found."""
    return {
        "name": CLUSTER,
        "connect_timeout": seconds(config.timeouts.connect),
        "circuit_breakers": breakers(),
        "typed_extension_protocol_options": {
            HTTP: typed(
                HTTP,
                common_http_protocol_options={"idle_timeout": seconds(KEEP_ALIVE)},
                explicit_http_config={"http_protocol_options": {}},  # vLLM speaks HTTP/1.1
            )
        },
    }


def _policy() -> Message:
    """Of the hosts in the cluster the one that the picker has named; a retry goes to the next in its list. Without a
    choice, and after the list's last, any host in turn."""
    round_robin = typed(f"{POLICIES}.round_robin.v3.RoundRobin")
    fallback = {"name": "envoy.load_balancing_policies.round_robin", "typed_config": round_robin}
    return {
        "name": "envoy.load_balancing_policies.override_host",
        "typed_config": typed(
            f"{POLICIES}.override_host.v3.OverrideHost",
            # The metadata, which no client can set, and not the header of the same name.
            override_host_sources=[{"metadata": CHOICE}],
            fallback_policy={"policies": [{"typed_extension_config": fallback}]},
        ),
    }


def _contexts(endpoints: Mapping[Address, EndpointSettings], system_ca: str) -> dict[Address, Message]:
    """How to speak TLS with those of them that do."""
    made = {}
    for address, endpoint in endpoints.items():
        if not endpoint.url.lower().startswith("https://"):
            continue
        tls = endpoint.tls or TlsSettings()
        name = tls.server_name or address.host
        common: Message = {"alpn_protocols": ["http/1.1"]}
        if tls.verify:
            common["validation_context"] = trusted(tls.ca or system_ca, name)
        if tls.certificate is not None:
            common["tls_certificates"] = [key_pair(tls.certificate, tls.key)]
        context = typed(
            "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", sni=name, common_tls_context=common
        )
        made[address] = {"name": "envoy.transport_sockets.tls", "typed_config": context}
    return made
