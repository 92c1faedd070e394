"""docs/configuration.md and docs/plugins.md hold what the code has: no key, default or plugin is missing or wrong."""

from __future__ import annotations

import dataclasses
import importlib
import re
import tomllib
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.build import build_scheduler
from gateway.config.decode import keys, required
from gateway.config.document import read_text
from gateway.config.load import loads
from gateway.config.registry import PluginType, discover
from gateway.config.settings import Config
from gateway.config.tenants_file import TenantsFile
from gateway.tenants.settings import TenantsFileSettings
from tests.support.candidates import context

DOCS = Path(__file__).parents[2] / "docs"
CONFIGURATION = (DOCS / "configuration.md").read_text()
PLUGINS = (DOCS / "plugins.md").read_text()
TENANTS = (DOCS / "tenants.md").read_text()
ROW = re.compile(r"^\| `([a-z0-9_.\[\]]+)` \| (.+?) \|", re.MULTILINE)
HEADINGS = ("What it does", "Scheduling intent", "Inputs", "Parameters", "Example")


def documented() -> dict[str, str]:
    return dict(ROW.findall(CONFIGURATION))


def every_key(kind: type[Any], prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """Path and field of every key, through nested settings and lists of them."""
    hints = typing.get_type_hints(kind)
    for field in keys(kind):
        path = f"{prefix}{field.name}"
        yield path, field
        inner = hints[field.name]
        arguments = typing.get_args(inner)
        if typing.get_origin(inner) in (types.UnionType, typing.Union):
            inner = next(filter(dataclasses.is_dataclass, arguments), inner)
        if dataclasses.is_dataclass(inner):
            yield from every_key(typing.cast(type[Any], inner), f"{path}.")
        elif arguments and dataclasses.is_dataclass(arguments[0]):
            yield from every_key(arguments[0], f"{path}[].")


def test_every_key_is_documented_and_nothing_else() -> None:
    assert set(documented()) == {path for path, _ in every_key(Config)}


@pytest.mark.parametrize(("path", "field"), [*every_key(Config)], ids=[path for path, _ in every_key(Config)])
def test_the_documented_default_is_the_code_s(path, field) -> None:
    written = documented()[path]
    if required(field):
        assert written == "required"
        return
    default = field.default if field.default is not dataclasses.MISSING else field.default_factory()
    if dataclasses.is_dataclass(default) or path in ("plugins", "profiles", "handlers"):
        assert written in ("see below", "see above")
        return
    value, _ = read_text(written.strip("`"), "docs", {})
    assert value == (list(default) if isinstance(default, tuple) else default)


def test_the_documented_wiring_is_the_default() -> None:
    block = CONFIGURATION.split("The defaults:")[1].split("```yaml")[1].split("```")[0]
    models = "models: [{name: m, endpoints: [{url: 'http://a:1'}]}]\n"
    assert loads(models + block, {}) == loads(models, {})


@pytest.mark.parametrize(
    ("document", "block"),
    [
        (name, block)
        for name, text in (("configuration", CONFIGURATION), ("plugins", PLUGINS), ("tenants", TENANTS))
        for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    ],
)
def test_examples_can_be_loaded(document, block) -> None:
    if block.startswith("# tenants.yaml"):
        assert TenantsFile("tenants.yaml", TenantsFileSettings(), {}).parse(block).tenants
        return
    text = block if "models:" in block else "models: [{name: m, endpoints: [{url: 'http://a:1'}]}]\n" + block
    config = loads(text, {})
    if "fewest-tokens" not in text:
        build_scheduler(config, context)


def built_in() -> list[PluginType]:
    found = discover()
    return [
        one for one in [*found.plugins.values(), *found.handlers.values()] if one.distribution.startswith("kvgate ")
    ]


def test_what_is_installed_is_what_the_project_declares() -> None:
    """The tests below are of the plugins that are installed."""
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
    declared = {
        (group, name, target)
        for group, points in project["entry-points"].items()
        if group.startswith("kvgate.")
        for name, target in points.items()
    }
    installed = {(one.kind.group, one.name, one.entry_point.value) for one in built_in()}
    assert declared == installed, "run `make install`: until then no test sees what pyproject.toml has changed"


@pytest.mark.parametrize("plugin", built_in(), ids=lambda one: f"{one.kind}-{one.name}")
def test_every_plugin_is_documented_with_its_parameters(plugin) -> None:
    rows = re.findall(rf"^\| `{plugin.name}` \|.*$", PLUGINS, re.MULTILINE)
    assert len(rows) == 1, f"docs/plugins.md needs one row for `{plugin.name}`, and has {len(rows)}"
    (row,) = rows
    cell = row.split("|")[-2]
    for field in keys(plugin.parameters()):
        found = re.search(rf"`{field.name}` \(`?([^)`:]*)", cell)
        assert found, f"{field.name} is not in: {row}"
        if required(field):
            assert found[1] == "required"
        else:
            default = field.default if field.default is not dataclasses.MISSING else field.default_factory()
            assert yaml.safe_load(found[1]) == (list(default) if isinstance(default, tuple) else default)


@pytest.mark.parametrize("plugin", built_in(), ids=lambda one: f"{one.kind}-{one.name}")
def test_every_plugin_s_module_has_the_fixed_headings(plugin) -> None:
    text = importlib.import_module(plugin.entry_point.module).__doc__ or ""
    assert f"``{plugin.name}``" in text.splitlines()[0]
    positions = {heading: text.find(f"\n{heading}\n    ") for heading in HEADINGS}
    module = plugin.entry_point.module
    missing = [heading for heading, at in positions.items() if at < 0]
    assert not missing, f"{module}: its docstring lacks {missing}"
    assert sorted(positions, key=positions.__getitem__) == [*HEADINGS], f"{module}: its headings are in another order"
    unnamed = [field.name for field in keys(plugin.parameters()) if f"``{field.name}``" not in text]
    assert not unnamed, f"{module}: its docstring does not name these parameters in double backticks: {unnamed}"


@pytest.mark.parametrize("page", ["configuration.md", "plugins.md", "metrics.md", "tenants.md", "llm-d.md"])
def test_links_lead_somewhere(page) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", (DOCS / page).read_text()):
        if "://" in target:
            continue
        file, _, heading = target.partition("#")
        path = DOCS / (file or page)
        assert path.exists(), target
        assert not heading or heading in headings(path.read_text()), target


def headings(text: str) -> set[str]:
    return {
        re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }
