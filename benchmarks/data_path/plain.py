"""The plain proxy that one writes first: aiohttp's server, aiohttp's client, round robin.

``python -m ...plain PORT URL...``
"""

from __future__ import annotations

import asyncio
import sys
from itertools import cycle

import aiohttp
import uvloop
from aiohttp import web

HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "host", "date", "server"})
LIMIT = 32 * 1024 * 1024


async def serve(port: int, urls: list[str]) -> None:
    engines = cycle(urls)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:

        async def handle(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
            async with session.request(
                request.method, next(engines) + request.path_qs, data=body, headers=headers
            ) as from_:
                passed = {name: value for name, value in from_.headers.items() if name.lower() not in HOP}
                if from_.content_length is not None:
                    return web.Response(status=from_.status, body=await from_.read(), headers=passed)
                response = web.StreamResponse(status=from_.status, headers=passed)
                await response.prepare(request)
                async for data in from_.content.iter_any():
                    await response.write(data)
                await response.write_eof()
                return response

        app = web.Application(client_max_size=LIMIT)
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2:]))
