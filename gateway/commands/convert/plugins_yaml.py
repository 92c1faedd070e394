"""What a conversion has made, as the text of a plugins.yaml; and the verdicts on all plugin types, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from gateway.commands.convert.convert import Converted
from gateway.commands.convert.types import TYPES
from gateway.commands.convert.verdict import PluginType, Slot
from gateway.config.describe import Dumper

HEAD = """\
# From {file}, an EndpointPickerConfig of llm-d ({version}), by kvgate convert.
# What became of it:
{findings}
#
# `kvgate epp` serves it to gateways that ask, `kvgate serve` to clients as well; without `epp` to clients alone.
"""

PLACES = {
    Slot.FILTER: "Filters",
    Slot.SCORER: "Scorers",
    Slot.PICKER: "Pickers",
    Slot.HANDLER: "Profile handlers",
    Slot.NONE: "All others",
}


def plugins_yaml(converted: Converted, file: str) -> str:
    """The text of a plugins.yaml, the findings as comments before it. ``file``: from which it was made."""
    found = "\n".join(f"#   {finding}" for finding in converted.findings) or "#   llm-d's defaults"
    head = HEAD.format(file=file, version=converted.api_version, findings=found)
    return "\n".join([head, *(dumped({name: value}) for name, value in converted.values.items())])


def dumped(values: Mapping[str, Any]) -> str:
    """As YAML that ``gateway.config`` reads as they are."""
    text: str = yaml.dump(
        _escaped(values), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None
    )
    return text


def _escaped(value: Any) -> Any:
    """With each ``$`` doubled: what llm-d's file has is no reference to the environment."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, Mapping):
        return {name: _escaped(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_escaped(one) for one in value]
    return value


def table() -> str:
    """The verdicts on all plugin types, as Markdown: docs/llm-d.md has it, and a test compares them."""
    parts = []
    for slot, title in PLACES.items():
        rows = "\n".join(_rows([one for one in TYPES.values() if one.slot is slot]))
        parts.append(f"### {title}\n\n| type | verdict | in kvgate | what differs |\n|---|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def _rows(types: list[PluginType]) -> Iterator[str]:
    """One for each, and one for neighbours that have the same verdict."""
    together: list[PluginType] = []
    for one in types:
        if together and (one.verdict, one.here, one.note) != _said(together[0]):
            yield _row(together)
            together = []
        together.append(one)
    if together:
        yield _row(together)


def _said(one: PluginType) -> tuple[str, str, str]:
    return one.verdict, one.here, one.note


def _row(types: list[PluginType]) -> str:
    verdict, here, note = _said(types[0])
    return f"| {', '.join(f'`{one.name}`' for one in types)} | {verdict} | {here or '-'} | {note} |"
