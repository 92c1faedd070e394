"""An engine's two event sockets without an engine: a PUB that each message goes to, and a ROUTER that replays them."""

from __future__ import annotations

from collections import deque

import zmq

from simulator.publisher import END


class EventSockets:
    """Both on free ports of this machine; ``addresses``: the PUB's and the ROUTER's. ``replayed``: how many of the last
    messages a replay has. They are closed with their context."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], replayed: int = 0) -> None:
        self._events = context.socket(zmq.PUB)
        self._replay = context.socket(zmq.ROUTER)
        self.addresses = []
        for socket in (self._events, self._replay):
            socket.linger = 0
            socket.sndhwm = 0
            socket.bind("tcp://127.0.0.1:*")
            self.addresses.append(socket.getsockopt_string(zmq.LAST_ENDPOINT))
        self._number = 0
        self._sent: deque[tuple[bytes, bytes]] = deque(maxlen=replayed)

    def send(self, payload: bytes) -> None:
        """Publish the next message."""
        number = self._number.to_bytes(8, "big")
        self._number += 1
        self._events.send_multipart([b"", number, payload])
        self._sent.append((number, payload))

    def answer(self) -> None:
        """Who has asked for a replay gets it."""
        while self._replay.poll(0):
            client, _, start = self._replay.recv_multipart()
            for number, payload in self._sent:
                if number >= start:
                    self._replay.send_multipart([client, b"", b"", number, payload])
            self._replay.send_multipart([client, b"", b"", END, b""])
