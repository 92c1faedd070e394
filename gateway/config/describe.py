"""The effective configuration as YAML: every key, defaults filled in, ready to be loaded again.

Values from the environment are written as references (``${NAME}``), so that no secret is printed. A secret that is in
the file itself is masked. The differences between two configurations are key paths without values, for a log.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import yaml

from gateway.config.build import filled
from gateway.config.decode import keys
from gateway.config.document import Loader
from gateway.config.origin import KeyPath, Origin
from gateway.config.registry import Registry, discover
from gateway.config.settings import Config

MASK = "****"
SECTIONS = ("plugins", "profiles")


class Dumper(yaml.SafeDumper):
    """Quotes a string that ours or YAML 1.1's rules would read as something else; repeats instead of aliasing."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _first, _resolvers in Loader.yaml_implicit_resolvers.items():
    for _tag, _pattern in _resolvers:
        Dumper.add_implicit_resolver(_tag, _pattern, [_first])


def describe(config: Config, registry: Registry | None = None) -> str:
    """``config`` as YAML, plugins' own defaults included. ``registry`` is what is installed where it is not given.

    Raises ConfigError if a plugin's type or parameters are wrong.
    """
    found = discover() if registry is None else registry
    # Typed parameters: a dataclass where a mapping was, which ``_plain`` writes as one.
    effective = dataclasses.replace(
        config,
        plugins=tuple(
            dataclasses.replace(one, parameters=filled(found.plugins, one, ("plugins", i), config.origin))
            for i, one in enumerate(config.plugins)
        ),
        handlers=tuple(
            dataclasses.replace(one, parameters=filled(found.handlers, one, ("handlers", i), config.origin))
            for i, one in enumerate(config.handlers)
        ),
    )
    plain = _plain(effective, (), config.origin, secret=False)
    return yaml.dump(plain, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=False)


def wiring_text(config: Config) -> str:
    """The plugins and profiles of ``config`` as YAML, as they were given: both whole, as they replace the defaults."""
    given = {name: _plain(getattr(config, name), (name,), config.origin, secret=False) for name in SECTIONS}
    return yaml.dump(given, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)


def _plain(value: Any, path: KeyPath, origin: Origin, *, secret: bool) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name), (*path, field.name), origin, secret=not field.repr)
            for field in keys(type(value))
        }
    if isinstance(value, Mapping):
        return {key: _plain(item, (*path, key), origin, secret=secret) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item, (*path, i), origin, secret=secret) for i, item in enumerate(value)]
    if isinstance(value, Enum):
        value = value.value
    reference = origin.references.get(path)
    # A value that was changed since (a path made absolute, a flag on the command line) is shown, not its reference.
    if reference is not None and str(value) == reference.value:
        return reference.text
    if secret and value is not None:
        return MASK
    return value.replace("$", "$$") if isinstance(value, str) else value


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Of two settings of one type: ``limits.max_queue``, ``models[sim].endpoints[http://a:8000] added``.

    Items of a list are identified by their name or URL. A list of other items counts as one value.
    """
    for field in keys(type(before)):
        one, other = getattr(before, field.name), getattr(after, field.name)
        where = f"{path}.{field.name}" if path else field.name
        if one == other:
            continue
        if dataclasses.is_dataclass(one) and type(one) is type(other):
            yield from differences(one, other, where)
        elif _is_named(one) and _is_named(other):
            yield from _of_lists(one, other, where)
        else:
            yield where


def _of_lists(before: tuple[Any, ...], after: tuple[Any, ...], path: str) -> Iterator[str]:
    ones, others = {_identity(item): item for item in before}, {_identity(item): item for item in after}
    yield from (f"{path}[{name}] removed" for name in ones if name not in others)
    for name, item in others.items():
        if name not in ones:
            yield f"{path}[{name}] added"
        elif ones[name] != item:
            yield from differences(ones[name], item, f"{path}[{name}]")
    if [name for name in ones if name in others] != [name for name in others if name in ones]:
        yield f"{path} in another order"


def _is_named(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(_identity(item) for item in value)


def _identity(item: Any) -> str:
    name: str = getattr(item, "url", "") or getattr(item, "name", "")
    return name if dataclasses.is_dataclass(item) else ""
