"""A registry made by hand: plugin types without installing anything."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.config.registry import PluginKind, PluginType


class HandMade(EntryPoint):
    """An entry point whose object is at hand."""

    def __new__(cls, *_: Any, **__: Any) -> HandMade:
        return super().__new__(cls)

    def __init__(self, name: str, made: Any, dist: str) -> None:
        super().__init__(name=name, value=f"made:{getattr(made, '__name__', 'thing')}", group="made")
        vars(self).update(made=made, dist=SimpleNamespace(name=dist, version="1.0"))

    def load(self) -> Any:
        if isinstance(self.made, Exception):
            raise self.made
        return self.made


@pytest.fixture
def plugin_type():
    def make(kind: str, name: str, made: Any, dist: str = "maker") -> PluginType:
        return PluginType(kind=PluginKind(kind), name=name, entry_point=HandMade(name, made, dist))

    return make
