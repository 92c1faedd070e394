"""gRPC health, as a probe of Kubernetes asks for it."""

from __future__ import annotations

from grpc import aio

from gateway.epp.transport.health import HealthCheckRequest, HealthCheckResponse


async def healthy(channel: aio.Channel, service: str, status: int) -> bool:
    """Whether ``service`` has this status; False where nobody answers."""
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=HealthCheckRequest.SerializeToString,
        response_deserializer=HealthCheckResponse.FromString,
    )
    try:
        return int((await check(HealthCheckRequest(service=service))).status) == status
    except aio.AioRpcError:
        return False
