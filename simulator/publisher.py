"""The KV events' sockets: a PUB that each batch goes to, and a ROUTER that sends the last ones again.

Both are bound, so that a gateway connects; or the PUB connects to a gateway, as vLLM's does where its endpoint has no
``*`` and no ``::``. Rank r has its own pair on the first rank's ports + r, and connects to a port that is r higher.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence

import zmq
import zmq.asyncio

from simulator.blocks import KvEvent
from simulator.encoding import encode_batch
from simulator.settings import EngineSettings

END = b"\xff" * 8
"""The sequence number that ends a replay."""

PORT_ATTEMPTS = 20
"""Ranks need ports in a row; a free run is found by trying."""

log = logging.getLogger("simulator")


class Publisher:
    """One rank's sockets. ``endpoint`` and ``replay`` are their addresses once bound, as a client connects to them;
    ``endpoint`` is the other side's where the PUB connects.

    ``mute``: that many batches more are kept but not sent live, as if the network had lost them.
    """

    def __init__(self, settings: EngineSettings, rank: int = 0) -> None:
        self.settings = settings
        self.rank = rank
        self.endpoint: str | None = None
        self.replay: str | None = None
        self.mute = 0
        self.next_seq = 0
        self._topic = settings.topic.encode()
        self._batches: deque[tuple[int, bytes]] = deque(maxlen=settings.buffer_steps)
        self._pub: zmq.Socket[bytes] | None = None
        self._router: zmq.asyncio.Socket | None = None
        self._task: asyncio.Task[None] | None = None

    def bind(self, context: zmq.Context[zmq.Socket[bytes]], host: str, port: int, replay_port: int) -> None:
        """Make the sockets. Port 0: any free one. Raises zmq.ZMQError if a port is taken."""
        self._pub = context.socket(zmq.PUB)
        self._pub.sndhwm = 100_000  # vLLM's default ``hwm``
        self._pub.ipv6 = ":" in host
        host = f"[{host}]" if ":" in host else host
        if self.settings.kv_connect is None:
            self._pub.bind(f"tcp://{host}:{port or '*'}")
            self.endpoint = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        else:
            there, _, first = self.settings.kv_connect.rpartition(":")
            self.endpoint = f"{there}:{int(first) + self.rank}"
            self._pub.connect(self.endpoint)
        if self.settings.replay:
            self._router = zmq.asyncio.Socket(context, zmq.ROUTER)
            self._router.sndhwm = self.settings.replay_limit
            self._router.ipv6 = self._pub.ipv6
            self._router.bind(f"tcp://{host}:{replay_port or '*'}")
            self.replay = str(self._router.getsockopt_string(zmq.LAST_ENDPOINT))

    def start(self) -> None:
        """Answer replay requests from now on."""
        if self._router is not None:
            self._task = asyncio.get_running_loop().create_task(self._serve(self._router), name="kv-replay")

    async def stop(self) -> None:
        """Answer none any more. The sockets stay bound."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def unbind(self) -> None:
        """Close the sockets at once; whatever is not yet sent is lost."""
        for socket in (self._pub, self._router):
            if socket is not None:
                socket.close(linger=0)
        self._pub = self._router = None

    def publish(self, events: Sequence[KvEvent]) -> None:
        """Send one batch, and keep it for replays."""
        settings = self.settings
        payload = encode_batch(
            time.time(),
            events,
            self.rank,
            positional=settings.positional_events,
            raw_hashes=settings.bytes_hashes,
        )
        self.send(payload)

    def send(self, payload: bytes) -> None:
        """Send any payload as the next batch: a test's way to say what no engine says."""
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        if self.mute:
            self.mute -= 1
        elif self._pub is not None:
            # Never waits: a PUB drops for a reader that is too slow.
            self._pub.send_multipart([self._topic, seq.to_bytes(8, "big"), payload])
        self._batches.append((seq, payload))

    def forget(self) -> None:
        """Empty the replay buffer, as if it had been too small."""
        self._batches.clear()

    async def _serve(self, router: zmq.asyncio.Socket) -> None:
        while True:
            frames = await router.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                log.warning("invalid replay request: %d frames", len(frames))
                continue
            client, start = frames[0], int.from_bytes(frames[2], "big")
            for seq, payload in list(self._batches):
                if seq >= start:
                    await router.send_multipart([client, b"", self._topic, seq.to_bytes(8, "big"), payload])
            await router.send_multipart([client, b"", b"", END, b""])


class EventSockets:
    """The publishers of all ranks; none if the engine has KV events off."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.publishers = [Publisher(settings, rank) for rank in range(settings.ranks if settings.kv_events else 0)]
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._host = ""

    def start(self, host: str) -> None:
        """Bind all, on ports in a row. Raises zmq.ZMQError if there is no such run."""
        if not self.publishers:
            return
        self._context, self._host = zmq.Context(), host
        for attempt in range(PORT_ATTEMPTS):
            try:
                self._bind(self._context, host)
            except zmq.ZMQError:
                self._unbind()
                if self.settings.kv_port or attempt == PORT_ATTEMPTS - 1:
                    self._context.term()
                    raise
            else:
                break
        for publisher in self.publishers:
            publisher.start()

    async def resize(self, ranks: int) -> None:
        """Have so many publishers from now on: each new one on the ports behind the last one's, or, where the settings
        name none and these are taken, on any.

        Raises zmq.ZMQError if a port that the settings mean is taken.
        """
        if self._context is None:
            return
        while len(self.publishers) > ranks:
            publisher = self.publishers.pop()
            await publisher.stop()
            publisher.unbind()
        while len(self.publishers) < ranks:
            last = self.publishers[-1]
            publisher = Publisher(self.settings, len(self.publishers))
            try:
                publisher.bind(self._context, self._host, _port(last.endpoint) + 1, _port(last.replay) + 1)
            except zmq.ZMQError:
                publisher.unbind()
                if self.settings.kv_port or self.settings.replay_port:
                    raise
                publisher.bind(self._context, self._host, 0, 0)
            publisher.start()
            self.publishers.append(publisher)

    async def close(self) -> None:
        for publisher in self.publishers:
            await publisher.stop()
        self._unbind()
        if self._context is not None:
            self._context.term()
            self._context = None

    def publish(self, rank: int, events: Sequence[KvEvent]) -> None:
        if self.publishers:
            self.publishers[rank].publish(events)

    def sources(self) -> dict[str, dict[str, object]]:
        """The answer of ``GET /kv_event_sources``: ``*`` stands where a client puts the engine's host."""
        return {
            str(publisher.rank): {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": publisher.endpoint if self.settings.kv_connect else f"tcp://*:{_port(publisher.endpoint)}",
                "replay_endpoint": f"tcp://*:{_port(publisher.replay)}" if publisher.replay else None,
                "buffer_steps": self.settings.buffer_steps,
                "hwm": 100_000,
                "max_queue_size": 100_000,
                "topic": self.settings.topic,
            }
            for publisher in self.publishers
        }

    def _bind(self, context: zmq.Context[zmq.Socket[bytes]], host: str) -> None:
        port, replay_port = self.settings.kv_port, self.settings.replay_port
        for publisher in self.publishers:
            publisher.bind(context, host, port, replay_port)
            port, replay_port = _port(publisher.endpoint) + 1, _port(publisher.replay) + 1

    def _unbind(self) -> None:
        for publisher in self.publishers:
            publisher.unbind()


def _port(address: str | None) -> int:
    return int(address.rpartition(":")[2]) if address else 0
