"""The endpoints of a model, and how their engines are watched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import urlsplit


def _has_port(address: str) -> bool:
    port = address.rpartition(":")[2]
    return port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) <= 65535


@dataclass(frozen=True, slots=True)
class KvEventsSettings:
    """Addresses of an engine's KV events: ``endpoint`` of its PUB socket, ``replay`` of its ROUTER socket.

    With ranks, rank r listens on port + r. ``enabled: false``: never subscribe, and estimate instead.
    ``connects``: the PUB socket connects to us and is identified by the whole ``topic``; else ``topic`` is a prefix.
    """

    endpoint: str | None = None
    replay: str | None = None
    topic: str = ""
    enabled: bool = True
    connects: bool = False

    def __post_init__(self) -> None:
        for name in ("endpoint", "replay"):
            value = getattr(self, name)
            if value is None:
                continue
            if not value.startswith(("tcp://", "ipc://")):
                raise ValueError(f"{name}: {value!r} must begin with tcp:// or ipc://")
            # With an address that cannot be used the endpoint would be estimated, which a user might not notice.
            if value.startswith("tcp://") and not _has_port(value):
                raise ValueError(f"{name}: {value!r} must be tcp://HOST:PORT")
        if self.connects and self.endpoint is not None:
            raise ValueError("we connect to endpoint, and with connects the engine connects to us: give one of the two")
        if self.replay is not None and self.endpoint is None and not self.connects:
            raise ValueError("replay needs endpoint, or connects")


STEP_TOKENS = 8192
"""Prompt tokens that an engine computes in one step: vLLM's default ``max_num_batched_tokens`` on an H100."""


@dataclass(frozen=True, slots=True)
class StartingCosts:
    """Starting values of one core's cost model, which is then fitted. All but ``step_tokens`` are seconds. The defaults
    are the profile ``70b-tp4``.

    ``prefill_token``: per new prompt token. ``prefill_quadratic``: per (new token x token of context).
    ``step``: an empty decode step. ``step_request``: per running request. ``kv_token``: per resident token. The others
    are as in ``CostSettings``.
    """

    prefill_token: float = 79.2e-6
    prefill_quadratic: float = 1.64e-9
    step: float = 21e-3
    step_request: float = 79.2e-6
    kv_token: float = 34.9e-9
    cpu_fetch: float = 1.6e-6
    storage_fetch: float = 25.6e-6
    step_tokens: int = STEP_TOKENS
    fit: bool = True

    def of_prompts_only(self) -> StartingCosts:
        """For a prefill endpoint: requests there wait for their prompts and make no decode step longer."""
        return replace(self, step_request=0.0, kv_token=0.0)


MAX_TENSOR_PARALLEL = 1024
"""GPUs of one engine core: beyond any deployment."""


@dataclass(frozen=True, slots=True)
class CostSettings:
    """On what the engines run: what the cost model starts from.

    ``profile``: a name in ``hardware.PROFILES``. ``gpu``, ``tensor_parallel``: on which and how many GPUs the model
    runs; the values follow from its config.json beside the tokenizer, in a folder or the hub's cache.
    ``cpu_fetch``, ``storage_fetch``: seconds per token that is held in the CPU's memory, or in storage, to bring it to
    the GPU. ``step_tokens``: prompt tokens of one step (vLLM's ``max_num_batched_tokens``). These three are not fitted.
    ``fit``: whether to fit the rest to measured times.

    A value that an endpoint does not set is its model's, then the fleet's, then that of ``70b-tp4`` with ``fit``. A
    level that names a profile or a GPU takes no values from the levels beyond it.
    """

    profile: Literal["70b-tp4", "8b-h100"] | None = None
    gpu: Literal["a100", "h100", "h200", "b200", "l4", "l40s", "mi300x"] | None = None
    tensor_parallel: int | None = None
    cpu_fetch: float | None = None
    storage_fetch: float | None = None
    step_tokens: int | None = None
    fit: bool | None = None

    def __post_init__(self) -> None:
        if self.profile is not None and self.gpu is not None:
            raise ValueError("name a profile or a gpu, not both")
        if self.tensor_parallel is not None and self.gpu is None:
            raise ValueError("tensor_parallel needs gpu")
        if self.tensor_parallel is not None and not 1 <= self.tensor_parallel <= MAX_TENSOR_PARALLEL:
            raise ValueError(f"tensor_parallel must be in 1..{MAX_TENSOR_PARALLEL}")
        if self.step_tokens is not None and self.step_tokens < 1:
            raise ValueError("step_tokens must be at least 1")
        for name in ("cpu_fetch", "storage_fetch"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"{name} must be at least 0 seconds")


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """How to speak TLS with an ``https`` engine. Files are PEM.

    ``ca``: trusted authorities, instead of the system's. ``certificate``, ``key``: our own, for engines that require
    client certificates; without ``key`` the key is in the certificate's file. ``server_name``: the name in the engine's
    certificate, if it is not the URL's host. ``verify: false`` accepts every certificate: anyone on the network path
    can then read everything.
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None
    verify: bool = True

    def __post_init__(self) -> None:
        for name in ("ca", "certificate", "key", "server_name"):
            if getattr(self, name) == "":
                raise ValueError(f"{name} must not be empty")
        if self.key is not None and self.certificate is None:
            raise ValueError("key needs certificate")
        if self.ca is not None and not self.verify:
            raise ValueError("ca says whom to believe, and verify: false believes everyone: give one of the two")
        if self.server_name is not None and not self.server_name.isascii():
            raise ValueError("server_name must be ASCII, as it is in the certificate")


MAX_SOCKET_PATH = 107
"""Bytes that Linux allows in a Unix socket's path (``sun_path``)."""

MAX_RANKS = 1024
"""Data-parallel ranks behind one URL: beyond any deployment of vLLM, and a mistyped number must not make a million
endpoints."""


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """One engine: its base URL (scheme, host, port; or ``unix://`` and a path), and what is configured for it.

    ``api_key``: sent to this engine as ``Authorization: Bearer``. ``ranks``: data-parallel ranks behind the URL; None:
    as many as the engine reports; 1: one endpoint, and the engine's own balancer chooses the rank.
    ``kv_capacity_tokens``: of each rank, if the engine does not report it or reports it wrongly.
    ``bootstrap_port``: where a prefill engine's Mooncake or SGLang bootstrap server listens. ``drain``: no new request
    goes there. ``cost``: if its hardware differs from that of the others.
    ``costs`` is no key: what ``cost`` of all levels comes to; None: by those that the fleet knows.
    """

    url: str
    role: Literal["prefill", "decode", "both"] = "both"
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    api_key: str | None = field(default=None, repr=False)
    ranks: int | None = None
    tls: TlsSettings | None = None
    kv_events: KvEventsSettings = field(default_factory=KvEventsSettings)
    kv_capacity_tokens: int | None = None
    bootstrap_port: int = 8998
    drain: bool = False
    cost: CostSettings = field(default_factory=CostSettings)
    costs: StartingCosts | None = field(default=None, metadata={"key": False})

    def __post_init__(self) -> None:
        _check_url(self.url)
        if self.tls is not None and not self.url.lower().startswith("https://"):
            raise ValueError(f"tls needs a url with https://, and {self.url!r} is another")
        if self.api_key is not None and not all("!" <= char <= "~" for char in self.api_key):
            raise ValueError("api_key must be printable ASCII without spaces: it is sent in a header")
        if self.ranks is not None and not 1 <= self.ranks <= MAX_RANKS:
            raise ValueError(f"ranks must be in 1..{MAX_RANKS}")
        if self.kv_capacity_tokens is not None and self.kv_capacity_tokens < 1:
            raise ValueError("kv_capacity_tokens must be at least 1")
        if not 1 <= self.bootstrap_port <= 65535:
            raise ValueError("bootstrap_port must be in 1..65535")

    @property
    def label(self) -> str:
        """Its name, else the URL's host and port as they are written, or ``unix:PATH``."""
        return self.name or urlsplit(self.url).netloc or f"unix:{urlsplit(self.url).path}"

    @property
    def host(self) -> str:
        """The host of the engine's other ports: the URL's, IPv6 without brackets; for a Unix socket this machine."""
        return urlsplit(self.url).hostname or "127.0.0.1"

    def kv_topic(self, model: str) -> str:
        """The topic of its KV events if it connects to us; the default is llm-d's convention."""
        return self.kv_events.topic or f"kv@{self.label}@{model}"


def _check_url(url: str) -> None:
    """Raises ValueError."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError(f"url: {url!r} is none: an IPv6 address is written as [::1]") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError("url must not hold a user or a password (it is logged): use api_key")
    if parts.query or parts.fragment:
        raise ValueError(f"url: {url!r} must not hold '?' or '#'")
    if parts.scheme == "unix":
        if parts.netloc or not parts.path.startswith("/") or parts.path.endswith("/"):
            raise ValueError(f"url: {url!r} must be unix:///PATH, with the socket's whole path")
        if len(parts.path.encode()) > MAX_SOCKET_PATH:
            raise ValueError(f"url: a Unix socket's path has at most {MAX_SOCKET_PATH} bytes: {url!r}")
        return
    if parts.scheme not in ("http", "https") or not parts.hostname or " " in parts.hostname:
        raise ValueError(f"url: {url!r} must be http://HOST:PORT, https://HOST:PORT or unix:///PATH")
    if parts.path not in ("", "/"):
        raise ValueError(f"url: {url!r} must end after the port: routes are added to it")
    try:
        port, _ = parts.port, parts.hostname.isascii() or parts.hostname.encode("idna")
    except UnicodeError:
        raise ValueError(f"url: {url!r} holds no name that a host can have") from None
    except ValueError:
        port = 0
    if port == 0:  # port 0 cannot be connected to, and it does not mean the default port
        raise ValueError(f"url: the port of {url!r} must be in 1..65535")


@dataclass(frozen=True, slots=True)
class ScrapeSettings:
    """``interval``: seconds between two scrapes of an engine. ``timeout``: seconds for one."""

    interval: float = 1.0
    timeout: float = 2.0

    def __post_init__(self) -> None:
        if not (self.interval > 0 and self.timeout > 0):
            raise ValueError("interval and timeout must be above 0 seconds")


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """``failures``: failed scrapes in a row that take an engine down (a refused connection does at once).

    ``backoff``: seconds until an engine that is down is tried again; they double up to ``health.MOST_BACKOFFS`` times
    as many. ``slow_start``: seconds until an engine that came back has its full share.
    """

    failures: int = 2
    backoff: float = 0.5
    slow_start: float = 10.0

    def __post_init__(self) -> None:
        if self.failures < 1:
            raise ValueError("failures must be at least 1")
        if not self.backoff > 0:
            raise ValueError("backoff must be above 0")
        if self.slow_start < 0:
            raise ValueError("slow_start must be at least 0")


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """How engines are watched, and what they cost unless models and endpoints say otherwise."""

    scrape: ScrapeSettings = field(default_factory=ScrapeSettings)
    health: HealthSettings = field(default_factory=HealthSettings)
    cost: CostSettings = field(default_factory=CostSettings)
