"""Errors say whose fault they are and carry the status that a client sees.

``gateway.api.errors`` turns one into a body in the client's dialect; nothing else decides a status. A message names
the culprit and the remedy, and never holds a key, a prompt or an engine's credentials.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway import framework


class GatewayError(Exception):
    """The base: never raised itself.

    ``status``: HTTP status, 400..599. ``type``: the ``error.type`` of OpenAI's shape. ``outcome``: the value of the
    ``outcome`` label in metrics. ``param``: the culprit's JSON path, or None. ``retry_after``: seconds for the
    ``Retry-After`` header, or None for no header. ``code``: the ``error.code`` of OpenAI's shape; None: the status.
    ``reason``: the header ``x-kvgate-reason``; empty: none is sent. ``should_retry``: the header ``x-should-retry``,
    which OpenAI's clients obey; None: none is sent. ``headers``: further ones of the answer, in lower case.
    """

    status = 500
    type = "internal_error"
    outcome = "error"
    code: str | None = None
    reason = ""
    should_retry: bool | None = None
    headers: Sequence[tuple[str, str]] = ()

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after


class ClientError(GatewayError):
    """The client's fault: the same request will fail again."""

    status = 400
    type = "invalid_request_error"
    outcome = "client_error"


class Unauthorized(ClientError):
    status = 401
    type = "authentication_error"
    outcome = "unauthorized"


class NotLoaded(GatewayError):
    """The server that keeps the clients' API keys has not been read yet: nobody knows whether a key is valid."""

    status = 503
    type = "service_unavailable"
    outcome = "keys_not_loaded"


class NotFound(ClientError):
    """An unknown path or model."""

    status = 404
    type = "not_found_error"
    outcome = "not_found"


class MethodNotAllowed(ClientError):
    status = 405
    outcome = "not_found"


class BodyTooLarge(ClientError):
    status = 413
    type = "request_too_large"


class ReceiveTimeout(ClientError):
    """The client was too slow to send its body."""

    status = 408
    type = "timeout_error"


class UnsupportedMediaType(ClientError):
    status = 415


class Saturated(GatewayError):
    """The model's limit of requests is reached and its queue is full, or the wait in it was too long.

    ``reason``: a short word, one of few, for the header ``x-kvgate-reason`` and for metrics.
    """

    status = 429
    type = "rate_limit_error"
    outcome = "saturated"

    def __init__(
        self, message: str, *, reason: str = "saturated", param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message, param=param, retry_after=retry_after)
        self.reason = reason


class LimitReached(GatewayError):
    """A limit of the client's tenant or key is reached, or its budget is spent. ``type``: ``requests``, ``tokens`` or
    ``insufficient_quota``, as at OpenAI."""

    status = 429
    outcome = "limited"

    def __init__(self, message: str, *, type: str, reason: str, retry_after: float | None = None) -> None:
        super().__init__(message, retry_after=retry_after)
        self.type, self.reason = type, reason
        self.code = "rate_limit_exceeded"
        if reason == "budget":
            self.code, self.should_retry = type, False


NO_ENDPOINT_RETRY = 2.0
"""Seconds in ``Retry-After`` where an endpoint may soon be usable: about one scrape and one back-off."""


class NoEndpoint(GatewayError, framework.NoEndpoint):
    """No endpoint may serve the request now: all down, draining, or removed by a filter (which the message names).

    Plugins' handlers know it by its second base.
    """

    status = 503
    type = "service_unavailable"
    outcome = "no_endpoint"


class Exhausted(GatewayError):
    """The gateway itself has no file descriptor, port or memory left for a connection to an engine."""

    status = 503
    type = "service_unavailable"
    outcome = "exhausted"


class PluginFailed(GatewayError):
    """A filter, picker or handler raised; the message names it."""

    status = 500
    type = "internal_error"
    outcome = "plugin_failed"


class UpstreamError(GatewayError):
    """An engine failed before the answer was committed, and no attempt is left."""

    status = 502
    type = "upstream_error"
    outcome = "upstream_error"


class UpstreamTimeout(UpstreamError):
    status = 504
    type = "timeout_error"
    outcome = "upstream_timeout"


class ConfigError(GatewayError):
    """The configuration cannot be used. The message is complete: file, line, key, and what is allowed or nearest."""

    outcome = "config"
