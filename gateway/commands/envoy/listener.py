"""Where Envoy serves clients: which paths, for how long, and what is tried again."""

from __future__ import annotations

import json

from gateway.api.routes import ROUTES
from gateway.commands.envoy.engines import CLUSTER
from gateway.commands.envoy.fields import Message, extension, key_pair, seconds, socket, typed
from gateway.commands.envoy.wanted import Mode, Wanted
from gateway.config.settings import Config
from gateway.proxy.upstream.legs import RETRY_STATUSES

READ = ("/v1/models", "/health", "/version")
"""Paths that are only read; an engine answers them."""

TRIED_AGAIN = ("connect-failure", "refused-stream", "reset-before-request", "retriable-status-codes")
"""What an engine has not worked on, and what is another engine's to answer."""

CONNECTION_BUFFER = 1 << 20
"""Bytes of a body that Envoy holds for a client: what does not fit is sent no second time. Its default, named here
since a buffered body needs more."""

STREAMS = 100
"""Requests at once on one HTTP/2 connection of a client, as Envoy advises for listeners that face the public."""


def listener(config: Config, wanted: Wanted, filters: list[Message], *, answer: float, retries: int) -> Message:
    """``filters``: before the router. ``answer``: seconds that the picker may take. ``retries``: of a request."""
    times = config.timeouts
    manager = extension(
        "envoy.filters.network.http_connection_manager",
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="clients",
        use_remote_address=True,  # what a client says of its own address is not believed
        # The id by which `kvgate explain --request` finds it: the client's own, where it sends one.
        preserve_external_request_id=True,
        always_set_request_id_in_response=True,
        # The picker judges the path that the engine gets.
        normalize_path=True,
        merge_slashes=True,
        server_header_transformation="PASS_THROUGH",
        request_headers_timeout=seconds(times.receive),
        # Until the request has been sent on: it may wait for its placement.
        request_timeout=seconds(times.receive + answer),
        # Nothing has come or gone for so long: a long queue and a long prefill are such a silence.
        stream_idle_timeout=seconds(answer + max(times.head, times.idle)),
        http2_protocol_options={"max_concurrent_streams": STREAMS},
        route_config={"name": CLUSTER, "virtual_hosts": [_virtual_host(config, answer, retries)]},
        http_filters=[
            *filters,
            extension(
                "envoy.filters.http.router",
                "envoy.extensions.filters.http.router.v3.Router",
                suppress_envoy_headers=True,  # x-envoy-...: of no use to clients and engines
            ),
        ],
    )
    chain: Message = {"filters": [manager]}
    if config.listen.tls is not None:
        chain["transport_socket"] = _tls(config)
    buffered = config.listen.max_body if wanted.mode is Mode.BUFFERED else 0
    return {
        "name": "clients",
        "address": socket(wanted.listen),
        "per_connection_buffer_limit_bytes": max(CONNECTION_BUFFER, buffered),
        "filter_chains": [chain],
    }


def _virtual_host(config: Config, answer: float, retries: int) -> Message:
    """The paths that kvgate passes on, and no others: engines have some that would stop them."""
    # Seconds from the whole request to the answer's end.
    route = {"cluster": CLUSTER, "timeout": seconds(answer + config.timeouts.total)}
    unknown = {"error": {"message": "unknown path: only inference routes are passed on", "type": "NotFoundError"}}
    host: Message = {
        "name": "all",
        "domains": ["*"],
        "routes": [
            *({"match": {"path": path}, "route": route} for path in (*ROUTES, *READ)),
            {
                "match": {"prefix": "/"},
                "direct_response": {"status": 404, "body": {"inline_string": json.dumps(unknown)}},
            },
        ],
    }
    if retries:
        host["retry_policy"] = _retry_policy(retries)
    return host


def _retry_policy(retries: int) -> Message:
    # An engine that broke off may have died of the request: once more, and no third time. Envoy does not count deaths.
    tried = (*TRIED_AGAIN, "reset") if retries == 1 else TRIED_AGAIN
    return {
        "retry_on": ",".join(tried),
        "retriable_status_codes": sorted(RETRY_STATUSES),
        "num_retries": retries,
        # Another host where the fallback chooses one. It may name the same one several times.
        "retry_host_predicate": [
            extension(
                "envoy.retry_host_predicates.previous_hosts",
                "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
            )
        ],
        "host_selection_retry_max_attempts": 5,
        "retry_back_off": {"base_interval": "0.010s", "max_interval": "0.100s"},
    }


def _tls(config: Config) -> Message:
    tls = config.listen.tls
    assert tls is not None
    common: Message = {
        "alpn_protocols": ["h2", "http/1.1"],
        "tls_certificates": [key_pair(tls.certificate, tls.key)],
    }
    if tls.client_ca is not None:
        common["validation_context"] = {"trusted_ca": {"filename": tls.client_ca}}
    context = typed(
        "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        common_tls_context=common,
        require_client_certificate=tls.client_ca is not None,
    )
    return {"name": "envoy.transport_sockets.tls", "typed_config": context}
