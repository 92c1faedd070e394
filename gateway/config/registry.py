"""The installed plugins, found through entry points. The built-in ones are found in the same way.

A plugin is imported only if a configuration names it. A name in two distributions is an error, even if it is not used:
which one would be chosen could change with the next install.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from enum import StrEnum
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points, packages_distributions
from typing import Any

from gateway.errors import ConfigError
from gateway.framework import NoParameters


class PluginKind(StrEnum):
    """What a plugin is; its entry points' group is ``kvgate.<kind>s``."""

    FILTER = "filter"
    SCORER = "scorer"
    PICKER = "picker"
    QUEUE = "queue"
    HANDLER = "handler"

    @property
    def group(self) -> str:
        return f"kvgate.{self.value}s"


METHODS: Mapping[PluginKind, tuple[tuple[str, int], ...]] = {
    PluginKind.FILTER: (("filter", 2),),
    PluginKind.SCORER: (("score", 2),),
    PluginKind.PICKER: (("pick", 3),),
    PluginKind.QUEUE: (("queued", 1), ("rank", 1), ("turn", 1), ("placed", 1), ("left", 1), ("settled", 3)),
    PluginKind.HANDLER: (("plan", 3),),
}
"""The methods of each kind and the numbers of their arguments, ``self`` not counted."""
HOOKS = (
    *(("on_placed", 2), ("on_settled", 3), ("on_heard", 1), ("remembered", 0)),
    *(("answer_headers", 2), ("explain", 2)),
)
"""The optional methods: of a plugin that remembers, also for other workers; of one that tells clients something; and of
a scorer that explains itself."""


@dataclass(frozen=True, slots=True)
class PluginType:
    """One entry point: ``name`` is a ``type`` in plugins.yaml, ``distribution`` what it was installed with."""

    kind: PluginKind
    name: str
    entry_point: EntryPoint

    @property
    def distribution(self) -> str:
        dist = self.entry_point.dist
        return f"{dist.name} {dist.version}" if dist is not None else "an unknown distribution"

    def __str__(self) -> str:
        return f"the {self.kind} {self.name!r} ({self.entry_point.value}, from {self.distribution})"

    def load(self) -> type[Any]:
        """The class. Raises ConfigError if it cannot be imported or is none."""
        try:
            found = self.entry_point.load()
        except Exception as error:
            raise ConfigError(f"{self} cannot be imported: {type(error).__name__}: {error}") from error
        if not isinstance(found, type):
            raise ConfigError(f"{self} is no class")
        return found

    def parameters(self) -> type[Any]:
        """The dataclass of its parameters. Raises ConfigError."""
        kind = getattr(self.load(), "Parameters", NoParameters)
        if not (isinstance(kind, type) and is_dataclass(kind)):
            raise ConfigError(f"{self}: its Parameters must be a dataclass")
        return kind

    def check(self, plugin: object) -> None:
        """Raises ConfigError if a method of its kind is missing in an instance, or cannot be called as it will be."""
        for method, arguments in METHODS[self.kind]:
            self._check_method(plugin, method, arguments)
        for hook, count in HOOKS:
            if hasattr(plugin, hook):
                self._check_method(plugin, hook, count)

    def _check_method(self, plugin: object, name: str, arguments: int) -> None:
        method = getattr(plugin, name, None)
        if not callable(method):
            raise ConfigError(f"{self} has no method {name!r}, which a {self.kind} needs")
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            raise ConfigError(f"{self}: {name!r} must not be async: decisions are made without waiting")
        if inspect.isgeneratorfunction(method):
            raise ConfigError(f"{self}: {name!r} must return its result, not yield it")
        try:
            inspect.signature(method).bind(*[None] * arguments)
        except TypeError as error:
            count = "1 positional argument" if arguments == 1 else f"{arguments} positional arguments"
            raise ConfigError(f"{self}: {name!r} must take {count}: {error}") from None
        except ValueError:
            return  # compiled code has no signature to check


class Registry:
    """The plugin types by name. All kinds share one set of names, but handlers, which have their own."""

    def __init__(self, types: Iterable[PluginType]) -> None:
        self.plugins: dict[str, PluginType] = {}
        self.handlers: dict[str, PluginType] = {}
        for new in types:
            names = self.handlers if new.kind is PluginKind.HANDLER else self.plugins
            old = names.setdefault(new.name, new)
            # Which distribution one is from is read from a file each time, so it is asked only where it matters.
            if old is not new and (old.kind, old.entry_point.value, old.distribution) != (
                new.kind,
                new.entry_point.value,
                new.distribution,
            ):
                raise ConfigError(f"two plugins have the name {new.name!r}: {old}, and {new}; uninstall one")


def discover() -> Registry:
    """The plugins of everything that is installed. Raises ConfigError where a name is offered twice.

    They are looked for again once a folder of the path has changed, as any install changes one.
    """
    return _discover(tuple((folder, _changed(folder)) for folder in sys.path))


def _changed(folder: str) -> int | None:
    """When files were last added to it or taken away, in nanoseconds."""
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return None


@lru_cache(maxsize=1)
def _discover(path: tuple[tuple[str, int | None], ...]) -> Registry:
    installed = entry_points()  # once for all kinds: it reads a file of each distribution
    return Registry(
        PluginType(kind=kind, name=point.name, entry_point=point)
        for kind in PluginKind
        for point in installed.select(group=kind.group)
    )


DISTRIBUTION = "kvgate"
PACKAGES = ("gateway", "scorers", "filters", "pickers", "queues", "simulator")


def clashes() -> list[str]:
    """One sentence for each distribution that installs a package under one of our names, which are short. Of two such
    packages Python imports the first that it finds, and users of the other get strange errors."""
    installed = packages_distributions()
    found = []
    for package in PACKAGES:
        others = sorted({name for name in installed.get(package, ()) if name.lower() != DISTRIBUTION})
        if others:
            found.append(
                f"the package {package!r} of {DISTRIBUTION} is also installed by {', '.join(others)}: "
                f"give {DISTRIBUTION} an environment of its own"
            )
    return found
