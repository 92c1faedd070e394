"""Plain values -> frozen dataclasses, strictly.

Types: str, int, float, bool, None, Any, Literal, StrEnum, tuple[X, ...] (from a list), Mapping[str, X], unions and
nested dataclasses. Nothing is repaired: an integer is no boolean, a number no string; only a float takes an integer. A
string that came from the environment (``${PORT}``) is read as the number or boolean that is asked for.

A field whose metadata has ``key: False`` is not a key of the file; a field with ``repr=False`` is a secret, whose
value appears in no error.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from gateway.config.document import scalar
from gateway.config.origin import KeyPath, Origin, nearest, show
from gateway.errors import ConfigError

T = TypeVar("T")

SHOWN = 60
"""Characters of a wrong value in an error: enough to find it."""


def keys(kind: type[Any]) -> tuple[dataclasses.Field[Any], ...]:
    """The fields of a settings type that are keys of the file, those without a default first."""
    fields = [field for field in dataclasses.fields(kind) if field.init and field.metadata.get("key", True)]
    return tuple(sorted(fields, key=lambda field: not required(field)))


def required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def decode(kind: type[T], value: Any, path: KeyPath, origin: Origin, extra: Mapping[str, Any] | None = None) -> T:
    """``value`` as the dataclass ``kind``; ``extra``: its fields that are no keys. Raises ConfigError.

    Raises TypeError if ``kind`` has a field of a type that no YAML can give.
    """
    return cast(T, _Decoder(origin).record(kind, value, path, extra))


class _Decoder:
    def __init__(self, origin: Origin) -> None:
        self._origin = origin

    def record(self, kind: type[Any], value: Any, path: KeyPath, extra: Mapping[str, Any] | None = None) -> Any:
        if not isinstance(value, dict):
            raise self._wrong("a mapping", value, path, secret=False)
        fields = {field.name: field for field in keys(kind)}
        for key in value:
            if key not in fields:
                raise self._origin.error((*path, key), f"unknown key{nearest(key, fields)}")
        hints = get_type_hints(kind)
        arguments = dict(extra or {})
        for name, field in fields.items():
            if name in value:
                arguments[name] = self.value(hints[name], value[name], (*path, name), secret=not field.repr)
            elif required(field):
                raise self._origin.error((*path, name), "this key is required")
        try:
            return kind(**arguments)
        except ConfigError:
            raise
        except ValueError as error:
            # Settings begin a message with the field it is about: then the line of that key is meant.
            problem = str(error)
            subject = problem.split(" ", 1)[0].rstrip(":")
            at = (*path, subject) if subject in value else path
            raise self._origin.error(path, self._origin.scrub(problem), at=at) from None

    def value(self, kind: Any, value: Any, path: KeyPath, *, secret: bool) -> Any:
        if kind is Any:
            return value
        if dataclasses.is_dataclass(kind):
            return self.record(cast(type[Any], kind), value, path)
        base, arguments = get_origin(kind), get_args(kind)
        if base in (Union, types.UnionType):
            return self._union(kind, value, path, secret)
        if base is Literal:
            if not any(value == option and type(value) is type(option) for option in arguments):
                raise self._not_of([str(option) for option in arguments], value, path, secret)
            return value
        if base in (list, Sequence) or (base is tuple and arguments[1:] == (...,)):
            if not isinstance(value, list):
                raise self._wrong(name(kind), value, path, secret)
            items = (self.value(arguments[0], item, (*path, i), secret=secret) for i, item in enumerate(value))
            return list(items) if base is list else tuple(items)
        if base in (dict, Mapping):
            if not isinstance(value, dict):
                raise self._wrong(name(kind), value, path, secret)
            return {key: self.value(arguments[1], item, (*path, key), secret=secret) for key, item in value.items()}
        if isinstance(kind, type) and issubclass(kind, Enum):
            if value not in [member.value for member in kind]:
                raise self._not_of([str(member.value) for member in kind], value, path, secret)
            return kind(value)
        return self._scalar(kind, value, path, secret)

    def _scalar(self, kind: Any, value: Any, path: KeyPath, secret: bool) -> Any:
        if kind in (int, float, bool) and isinstance(value, str) and path in self._origin.references:
            try:
                value = scalar(kind.__name__, value.strip())
            except ValueError:
                raise self._wrong(name(kind), value, path, secret) from None
        if kind in (None, type(None)) and value is None:
            return None
        if kind is float and type(value) is int:
            try:
                value = float(value)
            except OverflowError:
                value = math.inf
        if kind not in (str, int, float, bool):
            raise TypeError(f"{name(kind)} cannot be written in a configuration")
        if type(value) is not kind:
            raise self._wrong(name(kind), value, path, secret)
        if kind is float and not math.isfinite(value):
            raise self._origin.error(path, "expected a finite number")
        return value

    def _union(self, kind: Any, value: Any, path: KeyPath, secret: bool) -> Any:
        members = get_args(kind)
        if value is None and type(None) in members:
            return None
        members = tuple(member for member in members if member is not type(None))
        if len(members) == 1:
            return self.value(members[0], value, path, secret=secret)
        for member in members:
            try:
                return self.value(member, value, path, secret=secret)
            except ConfigError as error:
                if error.param != show(path):  # this member was meant: the fault is inside it
                    raise
        raise self._wrong(name(kind), value, path, secret)

    def _wrong(self, expected: str, value: Any, path: KeyPath, secret: bool) -> ConfigError:
        problem = f"expected {expected}, found {self._found(value, path, secret)}"
        if value is None:
            problem += "; leave the key out for its default"
        elif expected.startswith("a string") and isinstance(value, bool | int | float):
            problem += "; put it in quotes"
        return self._origin.error(path, problem)

    def _not_of(self, options: list[str], value: Any, path: KeyPath, secret: bool) -> ConfigError:
        word = value if isinstance(value, str) and not secret and path not in self._origin.references else ""
        return self._origin.error(
            path, f"{self._found(value, path, secret)} is not one of these{nearest(word, options)}"
        )

    def _found(self, value: Any, path: KeyPath, secret: bool) -> str:
        match value:
            case None:
                return "nothing"
            case list():
                return "a list"
            case dict():
                return "a mapping"
            case bool():
                kind, shown = "the boolean", str(value).lower()
            case int() | float():
                kind, shown = "the number", str(value)
            case _:
                kind, shown = "the string", repr(value)
        if path in self._origin.references:
            return f"{kind} that {self._origin.references[path].text} stands for"
        if secret:
            return f"{kind.replace('the', 'a')} (not shown)"
        return f"{kind} {shown if len(shown) <= SHOWN else shown[:SHOWN] + '...'}"


def name(kind: Any) -> str:
    """A type in the words of an error."""
    if dataclasses.is_dataclass(kind):
        return "a mapping"
    base, arguments = get_origin(kind), get_args(kind)
    if base in (Union, types.UnionType):
        return " or ".join(name(member) for member in arguments)
    if base in (tuple, list, Sequence):
        return "a list"
    if base in (dict, Mapping):
        return "a mapping"
    if base is Literal:
        return "one of " + ", ".join(str(option) for option in arguments)
    words = {str: "a string", int: "an integer", float: "a number", bool: "true or false", type(None): "nothing"}
    return words.get(kind, repr(kind))
