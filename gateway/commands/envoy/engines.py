"""The cluster of all engines: who is in it, how the picker's choice is followed, and what is done without one."""

from __future__ import annotations

from gateway.commands.envoy.fields import HTTP, Message, breakers, key_pair, kind_of, seconds, socket, trusted, typed
from gateway.commands.envoy.hosts import Host, hosts_of, listed, needs_tls, split_proxy
from gateway.config.settings import Config
from gateway.epp.names import BALANCER, DESTINATION
from gateway.errors import ConfigError

CLUSTER = "engines"

CHOICE: Message = {"key": BALANCER, "path": [{"key": DESTINATION}]}
"""Where the picker's choice is in the metadata: an ``ip:port``, or several, to be tried in this order."""

POLICIES = "envoy.extensions.load_balancing_policies"

MATCH = "envoy.transport_socket_match"

KEEP_ALIVE = 4.0
"""Seconds that an idle connection is kept: below the 5 s after which uvicorn, vLLM's server, closes its end. A request
that meets the closing would be lost."""

BY_CHOICE = 1
"""The priority of hosts to which only the picker's choice leads; the fallback never leaves priority 0 while hosts of it
are healthy, and nothing says that one is not."""


def engines_cluster(config: Config, *, system_ca: str) -> Message:
    """Raises ConfigError: engines come and go, and Envoy cannot follow as it is configured."""
    cluster: Message = {
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
    return cluster | (_of_hosts(config, system_ca) if listed(config) else _of_anybody(config))


def _of_hosts(config: Config, system_ca: str) -> Message:
    """All engines are known beforehand."""
    hosts = {host.address: host for model in config.models for host in hosts_of(model)}
    if (proxy := split_proxy(config)) is not None:
        hosts.setdefault(proxy.address, proxy)
    some = [host for host in hosts.values() if not host.by_choice] or list(hosts.values())
    groups = {0: some, BY_CHOICE: [host for host in hosts.values() if host not in some]}
    part: Message = {
        **kind_of(list(hosts)),
        "load_balancing_policy": {"policies": [{"typed_extension_config": _policy()}]},
        "load_assignment": {
            "cluster_name": CLUSTER,
            "endpoints": [
                {"priority": priority, "lb_endpoints": [_endpoint(host) for host in group]}
                for priority, group in groups.items()
                if group
            ],
        },
    }
    matches = [
        {"name": str(host.address), "match": {"host": str(host.address)}, "transport_socket": _tls(host, system_ca)}
        for host in hosts.values()
        if host.tls is not None
    ]
    return part | ({"transport_socket_matches": matches} if matches else {})


def _of_anybody(config: Config) -> Message:
    """Envoy connects to the address that the picker names, whatever it is: it comes from metadata, which no client can
    set. No other is tried, and without a choice there is none. Raises ConfigError."""
    if config.epp is not None and config.epp.fallbacks:
        problem = "where engines come and go Envoy takes one address, and answers a list with 503: leave it at 0"
        raise config.origin.error(("epp", "fallbacks"), problem)
    if any(needs_tls(model) for model in config.models):
        raise ConfigError("where engines come and go Envoy cannot tell which of them speak TLS: let it be plain HTTP")
    return {
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "original_dst_lb_config": {"metadata_key": CHOICE},
    }


def _endpoint(host: Host) -> Message:
    endpoint: Message = {"endpoint": {"address": socket(host.address)}}
    if host.tls is not None:
        endpoint["metadata"] = {"filter_metadata": {MATCH: {"host": str(host.address)}}}
    return endpoint


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


def _tls(host: Host, system_ca: str) -> Message:
    tls = host.tls
    assert tls is not None
    name = tls.server_name or host.address.host
    common: Message = {"alpn_protocols": ["http/1.1"]}
    if tls.verify:
        common["validation_context"] = trusted(tls.ca or system_ca, [name])
    if tls.certificate is not None:
        common["tls_certificates"] = [key_pair(tls.certificate, tls.key)]
    context = typed("envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", sni=name, common_tls_context=common)
    return {"name": "envoy.transport_sockets.tls", "typed_config": context}
