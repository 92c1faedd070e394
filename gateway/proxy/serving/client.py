"""A client as the rest of the gateway sees it: what it sends is read, and what it gets is written, through these alone.

The front door (``proxy/http``) adapts each request to a ``Client`` once. A door that does not carry the answer
(``gateway.epp``) has a ``Sender``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from gateway.proxy.memory import Share
from gateway.proxy.serving.stages import Stages
from gateway.tenants.identity import Caller


class ClientGone(Exception):
    """The client closed its connection, or took nothing for too long."""


class Reply(Protocol):
    """An answer on its way to the client: its head goes out with the first bytes of its body."""

    def send(self, data: bytes, last: bool) -> bool:
        """Write the next bytes of the body now. ``last``: they end it. True if some of it may wait for the client to
        take it: then await ``taken``."""
        ...

    def part(self, data: bytes) -> None:
        """Write a middle part of the body, neither the first nor the last, at the end of the loop's iteration."""

    def cut(self) -> None:
        """End it visibly incomplete."""

    async def taken(self, idle: float) -> None:
        """Wait until the client has room, and see to it that it takes the rest. Raises TimeoutError after ``idle``
        seconds in which it took nothing."""

    def attend(self, full: Callable[[], None], gone: Callable[[], None]) -> None:
        """Until ``forget``: call ``full`` each time when the client has no room, and ``gone`` when it has closed its
        half."""

    def watch(self, idle: float, taken: Callable[[], None], gone: Callable[[], None]) -> None:
        """Where the client has no room: call ``taken`` once it has, or ``gone`` after ``idle`` seconds in which it
        took nothing."""

    def forget(self) -> None:
        """Watch and attend no more; harmless at any time."""


class Sender(Protocol):
    """Who sends one request, and what. ``headers``: in the order in which they came, without the one that names its
    tenant. ``remote``: its address, if known. ``stages``: of its loop. ``caller``: whom it is for."""

    @property
    def stages(self) -> Stages: ...

    @property
    def caller(self) -> Caller: ...

    @property
    def headers(self) -> Sequence[tuple[str, str]]: ...

    @property
    def remote(self) -> str | None: ...

    def header(self, name: str) -> str:
        """The value of the first one of this name, in any case; empty if there is none."""
        ...

    async def receive(self, *, limit: int, timeout: float, share: Share) -> bytes:
        """The body, decompressed. ``limit``: bytes. ``timeout``: seconds. ``share``: of the memory for bodies.

        Raises ClientError where it cannot be had, ClientGone.
        """
        ...


class Client(Sender, Protocol):
    """One request of a client, which is answered by way of this process."""

    def reply(self, status: int, headers: Iterable[tuple[str, str]], *, length: int | None) -> Reply:
        """Begin the answer. ``length``: bytes of its body; None: not known. Raises ClientGone."""
        ...
