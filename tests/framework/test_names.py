"""Covers: gateway/framework/__init__.py.

What a plugin imports is a contract: a name more or less is a decision, and this list is where it is made.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import gateway.framework

ROOT = Path(__file__).parents[2]
PLUGINS = ("scorers", "filters", "pickers", "queues", "docs/examples")

NAMES = (
    *("Clock", "Context", "Endpoint", "Engine", "Filter", "GENERATES", "Handler", "Kind", "MOST_STALLED", "NO_MATCH"),
    *("NoEndpoint", "NoParameters", "Outcome", "Picker", "Plan", "Request", "Role", "RunProfile", "Scalars", "Scorer"),
    *("Order", "Tenant", "Waiting"),
    *("LATELY", "USUAL_DECODING_WEIGHT", "decoding_weight", "stall_seconds"),
)


def test_the_names_are_these_and_no_others() -> None:
    assert sorted(gateway.framework.__all__) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_says_what_each_is_for(name: str) -> None:
    assert f"`{name}`" in (ROOT / "docs" / "plugins.md").read_text()


def test_plugins_import_these_and_nothing_else_of_ours() -> None:
    found = {
        (node.module, each.name)
        for folder in PLUGINS
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "gateway"
        for each in node.names
    }
    assert found
    assert found <= {("gateway.framework", name) for name in NAMES}
