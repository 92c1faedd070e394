"""Tables in pages that people write: each stands between two marks, ``<!-- NAME -->`` and ``<!-- /NAME -->``."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.errors import ConfigError


def fill(page: Path, text: str, name: str, table: str) -> str:
    """``text`` with ``table`` between its marks; the words around them are a person's. Raises ConfigError where there
    is no such place; ``page`` is where it was looked for."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    between = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not between.search(text):
        raise ConfigError(f"{page}: has no place for {name!r}, between {begin} and {end}")
    return between.sub(lambda _: f"{begin}\n{table.strip()}\n{end}", text)
