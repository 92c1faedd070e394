"""The one fake engine of the tests that is no simulator: it says over HTTP exactly what a test wants."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.support.chat import COMPLETE, DONE, ROLE, WORD
from tests.support.wire import STREAM_HEAD, Connection, Script, ScriptedServer, answer, chunked, header_in, path_in

Post = Callable[[Connection, bytes, bytes], Awaitable[None]]
AtHead = Callable[[Connection, bytes], Awaitable[bool]]
Get = Callable[[Connection, bytes], Awaitable[None]]

WORDS = 4
"""Events with output in a streamed answer."""

STARTED = 1.7e9


async def answers(connection: Connection, head: bytes, body: bytes) -> None:
    """A good answer, streamed where that is asked for."""
    if orjson.loads(body).get("stream"):
        await connection.say(STREAM_HEAD + chunked(ROLE, *[WORD] * WORDS, DONE))
    else:
        await connection.say(answer(COMPLETE))


def _served() -> list[dict[str, Any]]:
    return [{"id": "sim", "object": "model", "root": "/models/sim", "parent": None, "max_model_len": 4096}]


@dataclass(eq=False)
class ScriptedEngine(ScriptedServer):
    """A server whose POSTs ``post(connection, head, body)`` answers in bytes, and whose other routes say what the
    fleet's probes want.

    A connection goes on after ``post`` returns, unless it closed it. ``at_head``: is asked before a POST's body is
    read; true: it did all that is to be done, and the connection is closed. ``faults``: path -> what to do instead of
    the answer to a GET. ``still``: no GET is answered any more. ``key``: without it /v1/ is not open.

    ``model`` and what follows: what its metrics say, for each of its ranks; None: not a word of it. ``kv_sources``:
    None: it has no such route.

    ``posts``: how many POSTs have come, whole; ``under_way``: how many of them are being answered. ``asked``,
    ``hosts``, ``keys``: of all other requests the path with its query, and what they name and show. ``scrapes``: how
    often its metrics were told.
    """

    script: Script = field(init=False, repr=False)
    post: Post = answers
    at_head: AtHead | None = field(default=None, kw_only=True)
    faults: dict[str, Get] = field(default_factory=dict, kw_only=True)
    still: bool = False
    key: str | None = field(default=None, kw_only=True)
    models: list[dict[str, Any]] = field(default_factory=_served, kw_only=True)
    kv_sources: dict[str, Any] | None = field(default_factory=dict, kw_only=True)

    model: str = field(default="sim", kw_only=True)
    ranks: int = field(default=1, kw_only=True)
    first_rank: int = field(default=0, kw_only=True)
    started: float | None = field(default=STARTED, kw_only=True)
    running: int = field(default=0, kw_only=True)
    waiting: int = field(default=0, kw_only=True)
    kv_usage: float = field(default=0.0, kw_only=True)
    capacity: str | None = field(default=None, kw_only=True)
    block_size: int = field(default=16, kw_only=True)
    queries: float | None = field(default=None, kw_only=True)
    awake: bool | None = field(default=None, kw_only=True)
    expired: float | None = field(default=None, kw_only=True)
    fetching: dict[str, int] = field(default_factory=dict, kw_only=True)

    posts: int = field(default=0, init=False)
    under_way: int = field(default=0, init=False)
    asked: list[str] = field(default_factory=list, init=False)
    hosts: list[str | None] = field(default_factory=list, init=False)
    keys: list[str | None] = field(default_factory=list, init=False)
    scrapes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.script = self._requests

    def count(self, path: str) -> int:
        return self.asked.count(path)

    def metrics(self) -> str:
        lines = [] if self.started is None else [f"process_start_time_seconds {self.started}"]
        for rank in range(self.first_rank, self.first_rank + self.ranks):
            labels = f'engine="{rank}",model_name="{self.model}"'
            lines += [
                f"vllm:num_requests_running{{{labels}}} {self.running + rank - self.first_rank}.0",
                f"vllm:num_requests_waiting{{{labels}}} {self.waiting}.0",
                f"vllm:kv_cache_usage_perc{{{labels}}} {self.kv_usage}",
            ]
            if self.queries is not None:
                lines.append(f"vllm:prefix_cache_queries_total{{{labels}}} {self.queries}")
                lines.append(f"vllm:prefix_cache_hits_total{{{labels}}} 0.0")
            if self.awake is not None:
                lines.append(f'vllm:engine_sleep_state{{{labels},sleep_state="awake"}} {float(self.awake)}')
            if self.capacity is not None:
                lines.append(
                    f'vllm:cache_config_info{{block_size="{self.block_size}",engine="{rank}",'
                    f'kv_cache_size_tokens="{self.capacity}",num_gpu_blocks="10"}} 1.0'
                )
            if self.expired is not None:
                lines.append(f"vllm:nixl_num_kv_expired_reqs_total{{{labels}}} {self.expired + rank - self.first_rank}")
            lines += [
                f'vllm:num_requests_kv_fetch_by_stage{{{labels},stage="{stage}"}} {count}.0'
                for stage, count in self.fetching.items()
            ]
        # The format wants all samples of one name together.
        return "\n".join(sorted(lines)) + "\n"

    async def _requests(self, connection: Connection) -> None:
        while not connection.writer.is_closing():
            head = await connection.head()
            is_post = head.startswith(b"POST ")
            if is_post and self.at_head is not None and await self.at_head(connection, head):
                return
            body = await connection.body(head)
            if not is_post:
                await self._get(connection, head)
                continue
            self.posts += 1
            self.under_way += 1
            try:
                await self.post(connection, head, body)
            finally:
                self.under_way -= 1

    async def _get(self, connection: Connection, head: bytes) -> None:
        path = path_in(head)
        self.asked.append(head.split(b" ", 2)[1].decode())
        self.hosts.append(header_in(head, b"host"))
        self.keys.append(header_in(head, b"authorization"))
        if self.still:
            await connection.gone()
            connection.writer.close()
        elif fault := self.faults.get(path):
            await fault(connection, head)
        elif path.startswith("/v1/") and self.key and self.keys[-1] != f"Bearer {self.key}":
            await connection.say(answer(b'{"error": "Unauthorized"}', status="401 Unauthorized"))
        elif path == "/metrics":
            await connection.say(answer(self.metrics().encode(), content_type="text/plain"))
            self.scrapes += 1
        elif path == "/health":
            await connection.say(answer(b""))
        elif path == "/version":
            await connection.say(answer(b'{"version": "0.32.0"}'))
        elif path == "/v1/models":
            await connection.say(answer(orjson.dumps({"object": "list", "data": self.models})))
        elif path == "/kv_event_sources" and self.kv_sources is not None:
            await connection.say(answer(orjson.dumps(self.kv_sources)))
        else:
            await connection.say(answer(b'{"detail": "Not Found"}', status="404 Not Found"))
