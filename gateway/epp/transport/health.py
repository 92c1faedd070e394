"""gRPC's health protocol (grpc.health.v1): what gateways and Kubernetes ask a picker before they use it."""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.message import Message

from gateway.epp.messages import field, message
from gateway.epp.transport.call import INVALID_ARGUMENT, Call, Method, Methods

LIVENESS = "liveness"
READINESS = frozenset({"readiness", "", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension"})
"""The last is what llm-d's chart asks where there is one replica."""

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


@message
class HealthCheckRequest(Message):
    service: str = field(1)


@message
class HealthCheckResponse(Message):
    status: int = field(1)


def health(ready: Callable[[], bool]) -> Methods:
    """``ready``: whether calls are wanted, asked for each check. ``Watch`` is not served: gRPC's clients then take a
    server for healthy, and neither Envoy nor Kubernetes asks it."""

    def status(service: str) -> int:
        if service == LIVENESS:
            return SERVING
        if service not in READINESS:
            return SERVICE_UNKNOWN
        return SERVING if ready() else NOT_SERVING

    return {"/grpc.health.v1.Health/Check": Method(HealthCheckRequest.FromString, lambda stream: Check(stream, status))}


class Check:
    """A call of ``Check``."""

    def __init__(self, stream: Call, status: Callable[[str], int]) -> None:
        self._stream = stream
        self._status = status

    def received(self, message: HealthCheckRequest) -> None:
        self._stream.send(HealthCheckResponse(status=self._status(message.service)))
        self._stream.end()

    def half_closed(self) -> None:
        self._stream.end(INVALID_ARGUMENT, "no message came")

    def gone(self, how: str) -> None: ...
