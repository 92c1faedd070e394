"""Where a process listens, as it is configured."""

from __future__ import annotations

from gateway.config.settings import Config
from gateway.proxy.settings import ListenSettings

BACKLOG = 4096
"""Connections that may wait to be accepted (Linux limits it to 4096). If more arrive at once, the clients' kernels try
again after a second. aiohttp's default is 128."""


def admin_address(listen: ListenSettings) -> tuple[str, int]:
    """Host and port of the operators' listener."""
    return split_address(listen.admin)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port or 0)


def url_of(config: Config, port: int) -> str:
    """Of the clients' listener."""
    host = f"[{config.listen.host}]" if ":" in config.listen.host else config.listen.host
    return f"{'http' if config.listen.tls is None else 'https'}://{host}:{port}"
