"""Settings of the endpoint picker: where gateways ask it, and what it makes of what they tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class PickerTlsSettings:
    """Files in PEM, read again when they change. ``certificate``: followed by the intermediate ones. ``key``: None: it
    is in the certificate's file."""

    certificate: str
    key: str | None = None

    def __post_init__(self) -> None:
        for name in ("certificate", "key"):
            if getattr(self, name) == "":
                raise ValueError(f"{name} must not be empty")


@dataclass(frozen=True, slots=True)
class PickerSettings:
    """``listen``: HOST:PORT of ext-proc, where its health is asked, too. ``health``: HOST:PORT of gRPC health alone,
    without TLS; empty: none. ``tls``: of ``listen``; ``self-signed``: with a certificate that is made at each start;
    None: plaintext.

    ``hears``: what of an answer is used: ``auto``, all that the gateway announces (``protocol_config``); ``full``, also
    bodies that it does not announce; ``ends``, when it ends; ``request``, nothing: a call ends once its request is
    answered. ``fallbacks``: further endpoints in the answer, for gateways that try them in order. ``subset``: whether
    the gateway may restrict the endpoints. ``split``: what becomes of a request whose prompt is better computed on
    another engine than its answer: ``headers``, llm-d's sidecar beside the decode engine is told of that one; IP:PORT,
    it goes to a proxy of kvgate there, such as this process's own; None: one engine does all of it. ``drain``: seconds
    that calls have to end in when it stops.
    """

    listen: str = "0.0.0.0:9002"
    health: str = "0.0.0.0:9003"
    tls: Literal["self-signed"] | PickerTlsSettings | None = None
    hears: Literal["auto", "full", "ends", "request"] = "auto"
    fallbacks: int = 0
    subset: bool = True
    split: str | None = None
    drain: float = 5.0

    def __post_init__(self) -> None:
        for name in ("listen", "health"):
            value = getattr(self, name)
            host, colon, port = value.rpartition(":")
            if (value or name == "listen") and not (colon and host and port.isdigit() and int(port) <= 65535):
                raise ValueError(f"{name}: {value!r} must be HOST:PORT")
        if self.split is not None and self.split != "headers":
            host, colon, port = self.split.rpartition(":")
            if not (colon and host and port.isdigit() and 0 < int(port) <= 65535):
                raise ValueError(f"split: {self.split!r} must be headers, or IP:PORT of a proxy")
        if not 0 <= self.fallbacks <= 15:
            raise ValueError("fallbacks must be in 0..15")
        if self.drain < 0:
            raise ValueError("drain must be at least 0 seconds")
