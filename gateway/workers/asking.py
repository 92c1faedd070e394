"""Questions to workers' admin routes, over their Unix sockets.

Asked with aiohttp's client, which the parent has in memory anyway, as a part of the server: httpx would be 6 MB more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from yarl import URL

from gateway.core.tasks import TaskSet
from gateway.workers.post import admin_socket
from gateway.workers.worker import Worker

ANSWER = 60.0
"""Seconds for an answer: an explanation tokenizes its prompt, and waits for others that do."""


@dataclass(frozen=True, slots=True)
class Answer:
    """``content_type``: with its parameters."""

    status: int
    body: bytes
    content_type: str

    @property
    def json(self) -> dict[str, Any]:
        """Its object; an empty one where it is none."""
        try:
            value = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def message(self) -> str:
        """What an answer that is an error says."""
        error = self.json.get("error")
        return str(error.get("message", "")) if isinstance(error, dict) else self.body[:200].decode(errors="replace")


class NoAnswer(Exception):
    """A worker does not answer: it has just ended, or hangs."""


class Asking:
    """Connections are kept, and closed with their worker."""

    def __init__(self) -> None:
        self._clients: dict[Worker, aiohttp.ClientSession] = {}
        self._tasks = TaskSet()

    async def ask(
        self,
        worker: Worker,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | AsyncIterator[bytes] | None = None,
        seconds: float = ANSWER,
    ) -> Answer:
        """``path``: with its query, encoded. Raises NoAnswer."""
        client = self._clients.get(worker)
        if client is None:
            client = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(admin_socket(worker.seat.directory, worker.number)),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(),
                skip_auto_headers=("Content-Type",),  # a body is asked about as the operator has sent it
            )
            self._clients[worker] = client
            worker.ended.add_done_callback(lambda _: self._ended(worker))
        try:
            async with asyncio.timeout(seconds):
                # The host's name goes into a header only.
                url = URL(f"http://worker{path}", encoded=True)
                async with client.request(method, url, headers=headers, data=body, allow_redirects=False) as reply:
                    content = await reply.read()
        except (aiohttp.ClientError, OSError, RuntimeError) as error:  # the last one: its client is closed
            raise NoAnswer(f"worker {worker.number} does not answer: {str(error) or type(error).__name__}") from error
        return Answer(reply.status, content, reply.headers.get("content-type", ""))

    async def ask_all(
        self,
        workers: Sequence[Worker],
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        seconds: float = ANSWER,
    ) -> dict[Worker, Answer]:
        """The answers of those that gave one; of none at all: the last NoAnswer is raised."""
        found = await asyncio.gather(
            *(self.ask(worker, method, path, body=body, seconds=seconds) for worker in workers), return_exceptions=True
        )
        answers: dict[Worker, Answer] = {}
        for worker, one in zip(workers, found, strict=True):
            if isinstance(one, Answer):
                answers[worker] = one
            elif not isinstance(one, NoAnswer):
                raise one
        if not answers:
            raise next((one for one in found if isinstance(one, NoAnswer)), NoAnswer("no worker serves"))
        return answers

    async def close(self) -> None:
        clients = list(self._clients.values())
        self._clients.clear()
        await self._tasks.close()
        for client in clients:
            await client.close()

    def _ended(self, worker: Worker) -> None:
        if worker in self._clients:
            self._tasks.start(self._drop(worker), name=f"close the connections to worker {worker.number}")

    async def _drop(self, worker: Worker) -> None:
        await self._clients[worker].close()
        self._clients.pop(worker, None)
