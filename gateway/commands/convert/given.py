"""Strict reading of a mapping: each key is taken by its name and type, and what nobody has taken is an error.

As in llm-d's JSON, null is the same as not given. Errors name file, line and key.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.commands.convert.go_values import duration, quantity
from gateway.config.origin import KeyPath, Origin, nearest
from gateway.errors import ConfigError


class Given:
    """A mapping at ``path``. ``end`` raises for what was not taken; ``rest`` takes it without a look."""

    def __init__(self, value: Any, path: KeyPath, origin: Origin) -> None:
        """Raises ConfigError if ``value`` is neither a mapping nor null."""
        if value is not None and not isinstance(value, Mapping):
            raise origin.error(path, "expected a mapping")
        self.path = path
        self.origin = origin
        self._values: dict[str, Any] = dict(value or {})
        self._known: set[str] = set()

    @property
    def line(self) -> int | None:
        """Where it is in the file."""
        return self.origin.lines.get(self.path)

    def text(self, name: str, default: str = "") -> str:
        value = self._take(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(name, "expected a string")
        return value

    def needed(self, name: str) -> str:
        """A text that must be given and not empty."""
        if not (value := self.text(name)):
            raise self.error(name, "this key is required")
        return value

    def number(self, name: str, default: float, *, least: float = 0.0, most: float = math.inf) -> float:
        value = self._take(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.error(name, "expected a number")
        if not least <= value <= most:
            raise self.error(name, f"must be in {least:g}..{most:g}")
        return value

    def integer(self, name: str, default: int, *, least: int = 0) -> int:
        value = self.number(name, default, least=least)
        if not isinstance(value, int):
            raise self.error(name, "expected an integer")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, "expected true or false")
        return value

    def one_of(self, name: str, allowed: Iterable[str], default: str) -> str:
        value = self.text(name, default)
        if value not in (options := tuple(allowed)):
            raise self.error(name, f"{value!r} is none of these{nearest(value, options)}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        values = self._items(name)
        if not all(isinstance(value, str) for value in values):
            raise self.error(name, "expected a list of strings")
        return tuple(values)

    def duration(self, name: str, default: float) -> float:
        """Go's form, such as ``1m30s``, in seconds."""
        if not (text := self.text(name)):
            return default
        try:
            return duration(text)
        except ValueError as error:
            raise self.error(name, str(error)) from None

    def quantity(self, name: str) -> int:
        """Kubernetes' form, such as ``512Mi`` or 1000; 0: it is not given."""
        value = self._take(name)
        if value is None:
            return 0
        try:
            return quantity(str(value))
        except ValueError as error:
            raise self.error(name, str(error)) from None

    def within(self, name: str) -> Given:
        """The mapping under ``name``; an empty one if it is not given."""
        return Given(self._take(name), (*self.path, name), self.origin)

    def each(self, name: str) -> list[Given]:
        """The mappings in the list under ``name``."""
        return [Given(value, (*self.path, name, i), self.origin) for i, value in enumerate(self._items(name))]

    def mapping(self, name: str) -> dict[str, str]:
        """Texts by name."""
        value = self._take(name)
        if value is None:
            return {}
        if not (isinstance(value, Mapping) and all(isinstance(one, str) for one in value.values())):
            raise self.error(name, "expected a mapping of strings")
        return dict(value)

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def only(self, usual: Mapping[str, object]) -> bool:
        """Whether nothing is given that is not in ``usual``."""
        return all(value is None or usual.get(name) == value for name, value in self._values.items())

    def raw(self, name: str) -> Any:
        """Whatever is under ``name``."""
        return self._take(name)

    def rest(self) -> tuple[str, ...]:
        """The names of what is left, which is taken so."""
        left = tuple(name for name in self._values if name not in self._known)
        self._known.update(left)
        return left

    def end(self) -> None:
        """Raises ConfigError for the first key that was not taken."""
        for name in self._values:
            if name not in self._known:
                raise self.error(name, f"unknown key{nearest(name, self._known)}")

    def error(self, name: str, problem: str) -> ConfigError:
        return self.origin.error((*self.path, name), problem)

    def _items(self, name: str) -> list[Any]:
        value = self._take(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(name, "expected a list")
        return value

    def _take(self, name: str) -> Any:
        self._known.add(name)
        return self._values.get(name)
