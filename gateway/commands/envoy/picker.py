"""Envoy's side of ``kvgate epp``: the filter that asks it about each request, and the cluster that it is."""

from __future__ import annotations

from typing import Any

from gateway.commands.envoy.fields import (
    HTTP,
    Message,
    breakers,
    extension,
    kind_of,
    seconds,
    socket,
    trusted,
    typed,
)
from gateway.commands.envoy.wanted import Mode, Wanted

CLUSTER = "picker"

FULL_DUPLEX = "FULL_DUPLEX_STREAMED"

MODES = {
    # Of the answer its headers and its end: the picker knows when the work has ended, for 4 messages a request. That
    # response trailers are sent keeps the call open to the end, although no engine has any.
    Mode.ENDS: (FULL_DUPLEX, "SEND", "NONE", "SEND"),
    # The whole answer, each event of it a message: usage, time to the first token and outcome.
    Mode.FULL: (FULL_DUPLEX, "SEND", FULL_DUPLEX, "SEND"),
    # Nothing of the answer: a second filter tells of it, and waits for nothing.
    Mode.OBSERVED: (FULL_DUPLEX, "SKIP", "NONE", "SKIP"),
    # Nothing of the answer. No stream breaks where a picker is killed.
    Mode.REQUEST: (FULL_DUPLEX, "SKIP", "NONE", "SKIP"),
    # Nothing of the answer, and the request's body as one message: content-length stays, and no body is lost where a
    # picker is. Envoy holds bodies, and answers 413 by itself beyond its buffer.
    Mode.BUFFERED: ("BUFFERED", "SKIP", "NONE", "SKIP"),
}
"""Request body, response headers, response body, response trailers."""

HEARD = (
    "upstream.address",  # who served: after a retry not whom the picker named
    "upstream.request_attempt_count",
    "response.code",
    "response.code_details",  # whether the status is the engine's or Envoy's own, and why
    "response.flags",
)
"""Attributes that come with the response's headers."""

CHECK = 1.0
"""Seconds between two health checks of a picker. With full duplex a request whose picker does not answer is lost (500)
until Envoy knows it; by default it would look once a minute while there is no traffic."""

UNHEALTHY = 2
"""Failed checks that take a picker out: one may be a pause of its process."""

STREAM_WINDOW = 1 << 20
CONNECTION_WINDOW = 16 << 20
"""Bytes that a picker, which gives the whole body back, may send before Envoy has passed them on. A connection's is
that of many streams: one body that a slow engine does not take holds up no other."""


def ext_procs(wanted: Wanted, *, fail_open: bool, answer: float, whole: float) -> list[Message]:
    """The filters that ask and tell pickers. ``answer``: seconds that one may take to choose, its queues included.
    ``whole``: seconds that a request and its answer may take."""
    asks = _asks(wanted, fail_open=fail_open, answer=answer, whole=whole)
    return [asks] if wanted.mode is not Mode.OBSERVED else [_tells(whole), asks]


def _asks(wanted: Wanted, *, fail_open: bool, answer: float, whole: float) -> Message:
    request_body, response_headers, response_body, response_trailers = MODES[wanted.mode]
    return _filter(
        whole,
        failure_mode_allow=fail_open,
        message_timeout=seconds(answer),  # 200 ms by default, and a request may wait in a queue for longer
        processing_mode={
            "request_header_mode": "SEND",
            "request_body_mode": request_body,
            # Full duplex wants trailers, too: they may be what ends a body.
            "request_trailer_mode": "SEND" if request_body == FULL_DUPLEX else "SKIP",
            "response_header_mode": response_headers,
            "response_body_mode": response_body,
            "response_trailer_mode": response_trailers,
        },
        metadata_options={
            # A subset of the endpoints is named in the one, and in the other who has served.
            "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
            "receiving_namespaces": {"untyped": ["envoy.lb"]},  # the choice
        },
        response_attributes=list(HEARD) if response_headers == "SEND" else [],
    )


def _tells(whole: float) -> Message:
    """A picker's answers to it are not awaited, and its death harms nobody. A call of its own: the picker knows by the
    request's id which answer it is."""
    return _filter(
        whole,
        observability_mode=True,
        failure_mode_allow=True,
        deferred_close_timeout="0.01s",  # after an answer's end, which the picker hears by it: 5 s by default
        processing_mode={
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "response_body_mode": "STREAMED",
            "response_trailer_mode": "SEND",
        },
        response_attributes=list(HEARD),
    )


def _filter(whole: float, **fields: Any) -> Message:
    return extension(
        "envoy.filters.http.ext_proc",
        "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": CLUSTER, "authority": CLUSTER}, "timeout": seconds(whole)},
        **fields,
    )


def picker_cluster(wanted: Wanted, *, connect: float) -> Message:
    """``connect``: seconds for a connection."""
    check: Message = {
        "timeout": "2s",
        "interval": seconds(CHECK),
        "no_traffic_interval": seconds(CHECK),
        "unhealthy_threshold": UNHEALTHY,
        "healthy_threshold": 1,
        # As the protocol names the service; a picker that drains says NOT_SERVING.
        "grpc_health_check": {"service_name": "envoy.service.ext_proc.v3.ExternalProcessor"},
    }
    cluster: Message = {
        "name": CLUSTER,
        **kind_of(wanted.pickers),
        "connect_timeout": seconds(connect),
        "lb_policy": "ROUND_ROBIN",
        "load_assignment": {
            "cluster_name": CLUSTER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket(one)}} for one in wanted.pickers]}],
        },
        "health_checks": [check],
        # Above 0 Envoy would go on asking unhealthy pickers where most are: it calls that panic mode. And by default it
        # holds back for 1 s what a second health check within a second has found.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}, "update_merge_window": "0s"},
        "circuit_breakers": breakers(),
        "typed_extension_protocol_options": {
            HTTP: typed(
                HTTP,
                explicit_http_config={
                    "http2_protocol_options": {
                        "initial_stream_window_size": STREAM_WINDOW,
                        "initial_connection_window_size": CONNECTION_WINDOW,
                        # A machine that has vanished closes no connection.
                        "connection_keepalive": {"interval": "10s", "timeout": "5s"},
                    }
                },
            )
        },
    }
    if wanted.picker_tls:
        check["tls_options"] = {"alpn_protocols": ["h2"]}
        context: Message = {"alpn_protocols": ["h2"]}
        if wanted.picker_ca is not None:
            context["validation_context"] = trusted(wanted.picker_ca, (one.host for one in wanted.pickers))
        tls = typed("envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", common_tls_context=context)
        cluster["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": tls}
    return cluster
