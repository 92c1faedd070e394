"""What the command line of ``kvgate envoy`` says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Mode(StrEnum):
    """How much of a request and its answer Envoy shows to the picker."""

    ENDS = "ends"
    FULL = "full"
    OBSERVED = "observed"
    REQUEST = "request"
    BUFFERED = "buffered"


@dataclass(frozen=True, slots=True)
class Address:
    """A host, IPv6 without brackets, and a port, 0..65535."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Of HOST:PORT, IPv6 as [HOST]:PORT. Raises ValueError."""
        host, colon, port = text.rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65535):
            raise ValueError(f"{text!r} must be HOST:PORT")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


SYSTEM_CA = "/etc/ssl/certs/ca-certificates.crt"
"""Where Debian, Ubuntu and Alpine have it, and Envoy's images, which are made of Ubuntu."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """``listen``: where Envoy serves clients. ``admin``: where it serves operators. ``pickers``: where ``kvgate epp``
    listens; several take turns. ``picker_ca``: a file of authorities in PEM that must have signed a picker's
    certificate; None: any certificate will do. ``system_ca``: the file of authorities for engines with TLS that
    name none; Envoy trusts nobody by itself, and then checks nothing. ``fail_open``: without a picker requests go on,
    to engines in turn."""

    listen: Address
    admin: Address
    pickers: tuple[Address, ...]
    mode: Mode = Mode.ENDS
    picker_tls: bool = False
    picker_ca: str | None = None
    system_ca: str = SYSTEM_CA
    fail_open: bool = True
