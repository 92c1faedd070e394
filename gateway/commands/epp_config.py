"""The configuration of ``kvgate epp`` with llm-d's arguments: what they say, and their file converted."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.commands.convert.convert import Converted, convert
from gateway.commands.convert.plugins_yaml import dumped
from gateway.commands.epp_flags import EppFlags
from gateway.config.document import text_of
from gateway.config.load import loads
from gateway.config.settings import Config
from gateway.errors import ConfigError

DEFAULTS = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n"
"""A file that says nothing: llm-d's own defaults."""


def config_of(flags: EppFlags) -> tuple[Config, Converted]:
    """Reads the file that the flags name, as it is now. Raises ConfigError."""
    text, file = DEFAULTS, "llm-d's defaults"
    if flags.config_text is not None:
        text, file = flags.config_text, "--config-text"
    elif flags.config_file is not None:
        text, file = text_of(flags.config_file), str(flags.config_file)
    values = flags.values()
    converted = convert(text, file, values["models"])
    if not (flags.pool or flags.selector or converted.finds):
        raise ConfigError("one of --pool-name and --endpoint-selector is required, or a file with file-discovery")
    made: Mapping[str, object] = {**values, **converted.values, "epp": {**values["epp"], **converted.values["epp"]}}
    return loads(dumped(made), {}, file=f"{file}, converted"), converted
