"""The network link over which KV moves from a prefill engine to a decode engine."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.commands.replay.pairs import number, pairs
from gateway.errors import ConfigError

FASTEST = 1e15
"""Bytes a second: more than any link has, so that a mistyped unit is found."""

LONGEST = 60.0
"""Seconds of latency: engines give up a hand-over before this."""


@dataclass(frozen=True, slots=True)
class Link:
    """Each engine has one link into the network. A hand-over takes ``latency`` seconds and then its bytes at ``rate``
    bytes a second, once both ends are free: transfers over one link follow each other.

    The default is a link of 200 Gbit/s, which the handler ``prefill-decode`` assumes as well, with one handshake and
    one notification of vLLM's NixlConnector.
    """

    rate: float = 25e9
    latency: float = 0.002

    def __post_init__(self) -> None:
        if not 1.0 <= self.rate <= FASTEST:
            raise ConfigError(f"--link: rate must be in 1..{FASTEST:g} bytes a second")
        if not 0 <= self.latency <= LONGEST:
            raise ConfigError(f"--link: latency must be in 0..{LONGEST:g} seconds")


def link(text: str) -> Link:
    """Read ``rate=25e9,latency=0.002``, or one of both. Raises ConfigError."""
    return Link(**{name: number("--link", value) for name, value in pairs("--link", text, ("rate", "latency")).items()})
