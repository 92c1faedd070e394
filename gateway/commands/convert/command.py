"""``kvgate convert FILE``: prints a plugins.yaml, and on stderr what differs from what llm-d does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.commands.convert.convert import convert
from gateway.commands.convert.plugins_yaml import plugins_yaml
from gateway.config.document import text_of

UNNAMED = "model"
NOWHERE = "http://127.0.0.1:8000"
"""In the place of what llm-d's file does not say: the engines are those of an InferencePool."""


def run(file: Path, model: str | None, urls: Sequence[str]) -> int:
    """Raises ConfigError for a file that llm-d would not take, or with plugins that are not known."""
    models: list[dict[str, Any]] = [
        {"name": model or UNNAMED, "endpoints": [{"url": url} for url in urls or [NOWHERE]]}
    ]
    converted = convert(text_of(file), str(file), models)
    print(plugins_yaml(converted, file.name), end="")
    for finding in converted.losses:
        print(f"kvgate: {file}: {finding}", file=sys.stderr)
    if model is None or not (urls or converted.finds):
        print(f"kvgate: {file}: it names no model or engine: complete 'models'", file=sys.stderr)
    return 0
