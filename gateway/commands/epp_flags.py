"""The command line of llm-d's endpoint picker, read as it reads it: for ``kvgate epp`` in its place.

Its chart gives the container such arguments. Flags are Go's: one dash or two, ``=`` or a space before the value, a bare
name for a switch. What has no meaning here is accepted, and said; so is a flag that is not known, since a newer chart
may have it. What would change where requests go is an error where it cannot be done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gateway.commands.convert.go_values import duration
from gateway.config.origin import nearest
from gateway.errors import ConfigError

POOL_GROUP = "inference.networking.k8s.io"
UNNAMED = "model"
EVERY_BAND = (-10, 10)
"""Clients of llm-d may name any objective: what a pool's objectives say is trusted."""

MOST_PORTS = 8
"""Of one pod: Kubernetes' own limit for an InferencePool."""

NO_MEANING = {
    "ha-enable-leader-election": "each picker decides; give several a Valkey to share loads with (sharing)",
    "refresh-metrics-interval": "engines are asked each second (fleet.scrape.interval): own requests are known without",
    "refresh-prometheus-metrics-interval": "metrics are made when they are asked for",
    "metrics-staleness-threshold": "what engines do not report is known from the ledger",
    "tracing": "no traces are sent",
    "health-checking": "gRPC health is always answered, on both ports",
    "enable-pprof": "there is no profiler on the metrics port",
    "enable-cert-reload": "changed certificates are always read again",
    "enable-grpc-stream-metrics": "calls are always counted",
    "metrics-endpoint-auth": "the metrics port asks for no token: let a NetworkPolicy say who may read it",
    "grpc-max-recv-msg-size": "bodies are bounded by listen.max_body",
    "grpc-max-send-msg-size": "messages are bounded by the gateway's windows",
    "allow-experimental-plugins": "there are no experimental plugins",
    "emit-endpoint-scores": "scores are shown by kvgate explain and /debug/decisions",
    "plugin-state-staleness-threshold": "plugins forget by themselves",
    "total-queued-requests-metric": "metrics are read by vLLM's names",
    "total-running-requests-metric": "metrics are read by vLLM's names",
    "kv-cache-usage-percentage-metric": "metrics are read by vLLM's names",
    "lora-info-metric": "adapters are those that engines list",
    "cache-info-metric": "metrics are read by vLLM's names",
    "zap-devel": "log lines have one form",
    "zap-stacktrace-level": "log lines have one form",
    "zap-time-encoding": "log lines have one form",
    "kubeconfig": "a kubeconfig is found by $KUBECONFIG",
}
"""Flags that are accepted and do nothing, and why not."""

SWITCHES = frozenset(
    {
        *(
            "secure-serving",
            "disable-endpoint-subset-filter",
            "ha-enable-leader-election",
            "tracing",
            "health-checking",
        ),
        *("enable-pprof", "enable-cert-reload", "enable-grpc-stream-metrics", "metrics-endpoint-auth", "zap-devel"),
        *("allow-experimental-plugins", "emit-endpoint-scores"),
    }
)
"""Flags that need no value."""


@dataclass(frozen=True, slots=True)
class EppFlags:
    """``config_file``, ``config_text``: of llm-d's file; None: its defaults. ``pool``: an InferencePool's name, else
    ``selector`` of pods and their ``ports``; neither: the file says where the engines are. ``namespace``: of pool or
    pods; None: the picker's own. ``secure``: whether ext-proc has TLS, with the files in the folder ``certificate``,
    None: self-signed. ``drain``: seconds for which it still answers when it was told to stop, not ready for new
    gateways. ``subset``: whether gateways may restrict the endpoints. ``notes``: what to tell of flags that do nothing.

    Flags of kvgate's own: ``model``, its name in metrics and logs, empty for the pool's; ``admin``, the operators'
    HOST:PORT, empty for none."""

    config_file: Path | None = None
    config_text: str | None = None
    pool: str | None = None
    selector: str | None = None
    ports: tuple[int, ...] = ()
    namespace: str | None = None
    grpc_port: int = 9002
    health_port: int = 9003
    metrics_port: int = 9090
    secure: bool = True
    certificate: str | None = None
    drain: float = 30.0
    subset: bool = True
    log_format: Literal["json", "text"] = "json"
    log_level: str = "info"
    model: str = ""
    admin: str = "127.0.0.1:9000"
    notes: tuple[str, ...] = field(default=())

    def values(self) -> dict[str, Any]:
        """What they say of plugins.yaml, as plain values. Its one model serves whatever clients name, as llm-d's pool
        does."""
        tls: Any = None
        if self.secure:
            folder = self.certificate
            tls = {"certificate": f"{folder}/tls.crt", "key": f"{folder}/tls.key"} if folder else "self-signed"
        return {
            "models": [{"name": self.model or self.pool or UNNAMED, "aliases": ["*"], **self._engines()}],
            "listen": {
                "admin": self.admin,
                "metrics": f"0.0.0.0:{self.metrics_port}",
                "lame_duck": self.drain,
            },
            "epp": {
                "listen": f"0.0.0.0:{self.grpc_port}",
                "health": f"0.0.0.0:{self.health_port}",
                "tls": tls,
                "subset": self.subset,
            },
            "tenants": {"tenants": [{"name": "default", "bands": list(EVERY_BAND)}]},
            "log": {"format": self.log_format, "level": self.log_level},
        }

    def _engines(self) -> dict[str, Any]:
        if self.pool:
            where: dict[str, Any] = {"pool": self.pool, "objectives": True}
        elif self.selector:
            where = {"selector": self.selector, "ports": list(self.ports)}
        else:
            return {"endpoints": []}
        return {"discover": [{"kubernetes": where | ({"namespace": self.namespace} if self.namespace else {})}]}


def read_flags(arguments: Sequence[str], environ: Mapping[str, str]) -> EppFlags:
    """Raises ConfigError for what llm-d would refuse, too: a value of the wrong kind, no pool, two of them."""
    flags, notes, group = EppFlags(namespace=environ.get("NAMESPACE") or None), [], POOL_GROUP
    for name, value in _pairs(arguments):
        if name == "pool-group":
            group = value
        elif name in NO_MEANING:
            notes.append(f"--{name}: has no meaning here: {NO_MEANING[name]}")
        elif (reader := READERS.get(name)) is not None:
            try:
                flags = replace(flags, **reader(value))
            except ValueError as error:
                raise ConfigError(f"--{name}: {value!r}: {error}") from None
        else:
            meant = nearest(name, (*READERS, *NO_MEANING)).partition(" Allowed")[0].rstrip(".")
            notes.append(f"--{name}: is not known, and ignored{meant}")
    _check(flags, group)
    return replace(flags, notes=tuple(notes))


def _check(flags: EppFlags, group: str) -> None:
    if flags.config_file is not None and flags.config_text is not None:
        raise ConfigError("--config-file and --config-text exclude each other")
    if flags.pool is not None and flags.selector is not None:
        raise ConfigError("--pool-name and --endpoint-selector exclude each other")
    if flags.pool is not None and group != POOL_GROUP:
        raise ConfigError(f"--pool-group: {group!r}: pools of {POOL_GROUP} can be followed")
    if flags.selector is not None and not 1 <= len(flags.ports) <= MOST_PORTS:
        raise ConfigError(f"--endpoint-target-ports: 1 to {MOST_PORTS} ports are needed with --endpoint-selector")
    if len({flags.grpc_port, flags.health_port, flags.metrics_port}) < 3:
        raise ConfigError("--grpc-port, --grpc-health-port and --metrics-port must differ")


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each flag's name and value; a switch without one is ``true``."""
    left = list(arguments)
    while left:
        argument = left.pop(0)
        if not argument.startswith("-") or argument in ("-", "--"):
            raise ConfigError(f"{argument!r}: an argument that belongs to no flag")
        name, equals, value = argument.lstrip("-").partition("=")
        if equals:
            yield name, value
        elif name in SWITCHES:
            yield name, left.pop(0) if left and left[0].lower() in ("true", "false") else "true"
        elif left and not left[0].startswith("-"):
            yield name, left.pop(0)
        elif name in READERS or name in NO_MEANING:
            raise ConfigError(f"--{name}: needs a value")
        else:
            yield name, "true"


def _switch(value: str) -> bool:
    """As Go's ``strconv.ParseBool``. Raises ValueError."""
    if value in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if value in ("0", "f", "F", "false", "FALSE", "False"):
        return False
    raise ValueError("expected true or false")


def _port(value: str) -> int:
    if not (value.isascii() and value.isdigit() and 1 <= int(value) <= 65535):
        raise ValueError("expected a port, in 1..65535")
    return int(value)


def _ports(value: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_port(one.strip()) for one in value.split(",") if one.strip()))


def _encoder(value: str) -> str:
    if value not in ("json", "console"):
        raise ValueError("expected json or console")
    return "json" if value == "json" else "text"


def _level(value: str) -> str:
    """Of zap: a word, or a number that grows with what is logged."""
    words = {
        "debug": "debug",
        "info": "info",
        "warn": "warning",
        "warning": "warning",
        "error": "error",
        "panic": "error",
    }
    if value in words:
        return words[value]
    return _verbosity(value)


def _verbosity(value: str) -> str:
    """llm-d's lines of debugging begin at 4."""
    if not value.isdigit():
        raise ValueError("expected a number")
    return "debug" if int(value) >= 4 else "info"


READERS: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "config-file": lambda value: {"config_file": Path(value)},
    "config-text": lambda value: {"config_text": value},
    "pool-name": lambda value: {"pool": value or None},
    "pool-namespace": lambda value: {"namespace": value} if value else {},
    "endpoint-selector": lambda value: {"selector": value.strip() or None},
    "endpoint-target-ports": lambda value: {"ports": _ports(value)},
    "grpc-port": lambda value: {"grpc_port": _port(value)},
    "grpc-health-port": lambda value: {"health_port": _port(value)},
    "metrics-port": lambda value: {"metrics_port": _port(value)},
    "secure-serving": lambda value: {"secure": _switch(value)},
    "cert-path": lambda value: {"certificate": value.rstrip("/") or None},
    "drain-timeout": lambda value: {"drain": duration(value)},
    "disable-endpoint-subset-filter": lambda value: {"subset": not _switch(value)},
    "zap-encoder": lambda value: {"log_format": _encoder(value)},
    "zap-log-level": lambda value: {"log_level": _level(value)},
    "model": lambda value: {"model": value},
    "admin": lambda value: {"admin": value},
    "v": lambda value: {"log_level": _verbosity(value)},
}
"""By flag: what its value says of ``EppFlags``."""


def of_llm_d(arguments: Sequence[str]) -> bool:
    """Whether these are arguments of llm-d's picker, and not of ``kvgate epp`` itself: none of the names is both's."""
    given = (argument.lstrip("-").partition("=")[0] for argument in arguments if argument.startswith("-"))
    return any(name in READERS or name in NO_MEANING or name == "pool-group" for name in given)
