"""``python -m simulator``: one simulated engine as a process.

Prints one line of JSON with its addresses once it listens. SIGTERM or SIGINT ends it with 0; a request that kills the
engine ends it with 1, as vLLM's server process goes down with its engine.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import signal
import sys
import typing
from collections.abc import Sequence

from simulator.server import EngineServer
from simulator.settings import EngineSettings


def parse(arguments: Sequence[str]) -> tuple[EngineSettings, str, int]:
    """Settings, host and port: every field of EngineSettings is a flag. Exits with 2 and the reason for a wrong one."""
    parser = argparse.ArgumentParser(prog="python -m simulator", description="A simulated vLLM 0.32 engine.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on, for KV events as well")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0: any free one")
    hints = typing.get_type_hints(EngineSettings)
    for field in dataclasses.fields(EngineSettings):
        flags = ["--" + field.name.replace("_", "-")]
        if field.name == "served_name":
            flags.append("--served-model-name")  # vLLM's word for it
        _add(parser, flags, hints[field.name], field.default)
    values = vars(parser.parse_args(arguments))
    host, port = values.pop("host"), values.pop("port")
    try:
        return EngineSettings(**values), host, port
    except ValueError as error:
        parser.error(str(error))


def _add(parser: argparse.ArgumentParser, flags: list[str], kind: object, default: object) -> None:
    if kind is bool:
        parser.add_argument(*flags, action=argparse.BooleanOptionalAction, default=default, help=f"default: {default}")
    elif kind == tuple[str, ...]:
        parser.add_argument(*flags, type=_names, default=default, metavar="A,B", help="names, separated by commas")
    else:
        options = [option for option in typing.get_args(kind) or (kind,) if option is not type(None)]
        parser.add_argument(*flags, type=options[0], default=default, metavar="VALUE", help=f"default: {default}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


async def serve(settings: EngineSettings, host: str, port: int) -> int:
    """Run until a signal (0) or the engine's death (1)."""
    server = EngineServer(settings)
    await server.start(host, port)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    addresses = {"url": server.url, "kv_endpoint": server.kv_endpoint, "kv_replay": server.kv_replay}
    addresses["bootstrap"] = server.bootstrap
    print(json.dumps({**addresses, "pid": os.getpid()}), flush=True)
    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(stop.wait()), group.create_task(server.died.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
    await server.close()
    return 1 if server.died.is_set() else 0


def main(arguments: Sequence[str] | None = None) -> int:
    settings, host, port = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        import uvloop
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(serve(settings, host, port))
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
    except OSError as error:
        print(f"cannot listen on {host}:{port}: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
