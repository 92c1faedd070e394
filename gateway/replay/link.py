"""What carries KV from the engine that computed a prompt to the one that answers it."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.errors import ConfigError
from gateway.replay.pairs import number, pairs

FASTEST = 1e15
"""Bytes a second: beyond any link, and a mistyped unit is found."""

LONGEST = 60.0
"""Seconds of latency: engines give a hand-over up before."""


@dataclass(frozen=True, slots=True)
class Link:
    """Each engine has one into the network. A hand-over takes ``latency`` seconds and then its bytes at ``rate`` bytes
    a second, once both ends are free: what moves over one link moves one after the other.

    The default is one link of 200 Gbit/s, as the handler ``prefill-decode`` assumes it, and a handshake and a
    notification of vLLM's NixlConnector.
    """

    rate: float = 25e9
    latency: float = 0.002

    def __post_init__(self) -> None:
        if not 1.0 <= self.rate <= FASTEST:
            raise ConfigError(f"--link: rate must be in 1..{FASTEST:g} bytes a second")
        if not 0 <= self.latency <= LONGEST:
            raise ConfigError(f"--link: latency must be in 0..{LONGEST:g} seconds")


def link(text: str) -> Link:
    """Of ``rate=25e9,latency=0.002``, or one of both. Raises ConfigError."""
    return Link(**{name: number("--link", value) for name, value in pairs("--link", text, ("rate", "latency")).items()})
