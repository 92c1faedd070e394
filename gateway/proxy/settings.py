"""The listeners, the limits and the patience of the data path."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ListenTlsSettings:
    """Files in PEM, read again when they change. ``certificate``: the listener's, and after it those between it and its
    authority. ``key``: without it the key is in the certificate's file. ``client_ca``: authorities of which each client
    must show a certificate; None: clients are asked for none.
    """

    certificate: str
    key: str | None = None
    client_ca: str | None = None

    def __post_init__(self) -> None:
        for name in ("certificate", "key", "client_ca"):
            if getattr(self, name) == "":
                raise ValueError(f"{name} must not be empty")


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """``host``, ``port``: the clients' listener. ``admin``: HOST:PORT of /metrics, empty for none. ``tls``: of the
    clients' listener; None: plain HTTP.

    ``max_body``: bytes of a request's body; beyond it 413. ``max_held``: bytes of all requests' bodies that have not
    gone to an engine for good, and of unstreamed answers; beyond it a body is not read on for some seconds, and then
    503. The default is 16 of the largest bodies: each is in memory up to three times while it is parsed and sent on,
    which a machine of 4 GB bears. ``grace``: seconds that running answers have to end after
    SIGTERM.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    admin: str = "127.0.0.1:9000"
    tls: ListenTlsSettings | None = None
    max_body: int = 32 * 1024 * 1024
    max_held: int = 512 * 1024 * 1024
    grace: float = 30.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError("port must be in 0..65535")
        if self.max_body < 1:
            raise ValueError("max_body must be at least 1 byte")
        if self.max_held * 3 < self.max_body * 4:
            raise ValueError("max_held must be at least 4/3 of max_body, or a largest body would never have room")
        if self.grace < 0:
            raise ValueError("grace must be at least 0 seconds")
        if self.admin:
            host, colon, port = self.admin.rpartition(":")
            if not (colon and host and port.isdigit() and int(port) <= 65535):
                raise ValueError(f"admin: {self.admin!r} must be HOST:PORT")


@dataclass(frozen=True, slots=True)
class TimeoutSettings:
    """Seconds; each guards one wait, and each can be seen in metrics by its name.

    ``receive``: for a client's body to arrive, whole, and for a new connection's first head. ``connect``: until a
    connection is made. ``head``: from the request sent to the answer's head or first event (a long queue and a long
    prefill are in it, and of an unstreamed answer all of it). ``idle``: between two chunks of a stream, and for a
    client to take one. ``total``: one leg, whole. ``prefill``: a separate prefill leg, whole; the decode endpoint then
    computes the prompt. ``handover``: from a streamed decode leg that fetches its KV to its first event; it is then
    sent again without: vLLM bounds a fetch that is stuck by nothing.
    """

    receive: float = 60.0
    connect: float = 3.0
    head: float = 300.0
    idle: float = 120.0
    total: float = 3600.0
    prefill: float = 120.0
    handover: float = 120.0

    def __post_init__(self) -> None:
        for name in ("receive", "connect", "head", "idle", "total", "prefill", "handover"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0 seconds")


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """``attempts``: legs that may be tried for one request, the first included.

    ``budget``: of a model's requests, the fraction that may be tried again, so that a sick fleet is not hammered. An
    engine's death is not charged to it: each request may be sent again once after one.
    """

    attempts: int = 2
    budget: float = 0.1

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError("attempts must be at least 1")
        if not 0 <= self.budget <= 1:
            raise ValueError("budget must be in 0..1")


@dataclass(frozen=True, slots=True)
class KeySettings:
    """Keys that clients must send as ``Authorization: Bearer`` (or ``x-api-key``); none: no key is asked for.

    ``values``: keys, best as ``${NAME}``. ``file``: a file with one key per line; empty lines and ``#`` are skipped.
    """

    values: tuple[str, ...] = field(default=(), repr=False)
    file: str | None = None

    def __post_init__(self) -> None:
        if any(not value.strip() for value in self.values):
            raise ValueError("values: a key is empty")
