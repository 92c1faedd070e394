"""Settings of the listeners, and the limits and timeouts of the data path."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class ListenTlsSettings:
    """Files in PEM, read again when they change. ``certificate``: the listener's, followed by the intermediate ones.
    ``key``: None: the key is in the certificate's file. ``client_ca``: each client must have a certificate from one of
    these authorities; None: client certificates are not requested.
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
    """``host``, ``port``: the clients' listener. ``admin``: HOST:PORT of the operators' routes and /metrics, empty for
    none. ``metrics``: HOST:PORT of /metrics alone, for who may not do as operators do; empty: none. ``tls``: of the
    clients' listener; None: plain HTTP. ``workers``: processes that serve the port, 1..256; ``auto``: one for each core
    that may be used; 1: one process, without a parent.

    ``max_body``: bytes of a request's body; a larger one gets 413. ``max_held``: bytes of all requests' bodies that may
    still be sent to an engine, and of unstreamed answers. If they are used up, a body is not read on for some seconds,
    and then refused with 503. The default is 16 of the largest bodies. Each body is in memory up to three times while
    it is parsed and forwarded, which fits into 4 GB.

    ``lame_duck``: seconds after SIGTERM in which it goes on accepting, while readiness is red already; the same time
    clients' idle connections are kept when another process takes over. ``grace``: seconds that running answers have to
    end after that.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    admin: str = "127.0.0.1:9000"
    metrics: str = ""
    tls: ListenTlsSettings | None = None
    max_body: int = 32 * 1024 * 1024
    max_held: int = 512 * 1024 * 1024
    lame_duck: float = 5.0
    grace: float = 30.0
    workers: int | Literal["auto"] = 1

    def __post_init__(self) -> None:
        if isinstance(self.workers, int) and not 1 <= self.workers <= 256:
            raise ValueError("workers must be in 1..256, or auto")
        if not 0 <= self.port <= 65535:
            raise ValueError("port must be in 0..65535")
        if self.max_body < 1:
            raise ValueError("max_body must be at least 1 byte")
        if self.max_held * 3 < self.max_body * 4:
            raise ValueError("max_held must be at least 4/3 of max_body, or a largest body would never have room")
        if self.lame_duck < 0:
            raise ValueError("lame_duck must be at least 0 seconds")
        if self.grace < 0:
            raise ValueError("grace must be at least 0 seconds")
        for name in ("admin", "metrics"):
            if value := getattr(self, name):
                host, colon, port = value.rpartition(":")
                if not (colon and host and port.isdigit() and int(port) <= 65535):
                    raise ValueError(f"{name}: {value!r} must be HOST:PORT")
        if self.metrics and self.workers != 1:
            raise ValueError("metrics is for one process: with several workers, their parent's admin listener has them")


@dataclass(frozen=True, slots=True)
class TimeoutSettings:
    """Seconds. Each one limits one wait; metrics report it by its name.

    ``receive``: for a client's body to arrive, whole, and for a new connection's first head. ``connect``: until a
    connection is made. ``head``: from sending the request to the answer's head or first event (it includes a long queue
    and a long prefill, and all of an unstreamed answer). ``idle``: between two chunks of a stream, and for a client to
    read one. ``total``: one whole leg. ``prefill``: a whole prefill leg; after it the decode endpoint computes the
    prompt. ``handover``: from sending a streamed decode leg that fetches its KV to its first event; after it the leg is
    sent again without the fetch, since vLLM itself has no timeout for it.
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

    ``budget``: the fraction of a model's requests that may be retried, so that retries do not overload a failing fleet.
    Retries after an engine's death do not count: each request may be sent again once after one.
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
    """Keys that clients must send as ``Authorization: Bearer`` (or ``x-api-key``). Without any, no key is required.

    ``values``: keys, best as ``${NAME}``. ``file``: a file with one key per line; empty lines and ``#`` are skipped.
    """

    values: tuple[str, ...] = field(default=(), repr=False)
    file: str | None = None

    def __post_init__(self) -> None:
        if any(not value.strip() for value in self.values):
            raise ValueError("values: a key is empty")
