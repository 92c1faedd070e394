"""Values of the command line in the place of the configuration's."""

from __future__ import annotations

import dataclasses

from gateway.config.settings import Config
from gateway.errors import ConfigError


def override(config: Config, host: str | None, port: int | None, log_format: str | None, level: str | None) -> Config:
    """``config`` with the values of the command line. Raises ConfigError."""
    try:
        listen = dataclasses.replace(
            config.listen,
            **{name: value for name, value in (("host", host), ("port", port)) if value is not None},  # type: ignore[arg-type]
        )
    except ValueError as error:
        raise ConfigError(f"--{error}") from None
    logs = dataclasses.replace(
        config.log,
        **{name: value for name, value in (("format", log_format), ("level", level)) if value is not None},  # type: ignore[arg-type]
    )
    return dataclasses.replace(config, listen=listen, log=logs)
