"""YAML text -> plain values, and the line of each.

Rules:

- scalars are read by YAML 1.2's core schema: only ``true`` and ``false`` are booleans (``yes``, ``no``, ``on`` are
  strings), ``1e-3`` is a number, dates and ``12:30:45`` are strings; numbers may have underscores;
- a mapping's keys are strings, each once; anchors, aliases and merge keys (``<<``) work; tags do not;
- ``${NAME}`` in a string value is replaced by the environment's; ``${NAME:-default}`` where it is unset or empty;
  ``$$`` is a dollar sign. Keys are never replaced;
- size, depth and the number of values, aliases counted each time, are bounded: a file cannot exhaust the process.

This file knows no setting; ``decode`` gives the values their types.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gateway.config.origin import KeyPath, Origin, Reference
from gateway.errors import ConfigError

MAX_BYTES = 1 << 20
"""A thousand endpoints with all their keys are 300 KB; PyYAML reads about 200 KB a second."""
MAX_VALUES = 100_000
"""A thousand endpoints with all their keys are 15,000 values; the classic bomb of nine aliases makes 10^9."""
MAX_DEPTH = 40
"""The deepest setting is at 6; the rest is for plugins' parameters and template arguments."""

_TAG = "tag:yaml.org,2002:"
_REFERENCE = re.compile(r"\$\$|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|\$\{")


class Loader(yaml.SafeLoader):
    """PyYAML's pure Python parser with the resolvers of YAML 1.2's core schema in place of those of YAML 1.1."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 -- PyYAML's own way to say which resolvers a loader has


Loader.add_implicit_resolver(f"{_TAG}bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
Loader.add_implicit_resolver(f"{_TAG}null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
Loader.add_implicit_resolver(
    f"{_TAG}int", re.compile(r"^(?:[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+)$"), list("-+0123456789")
)
Loader.add_implicit_resolver(
    f"{_TAG}float",
    re.compile(
        r"^(?:[-+]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+.0123456789"),
)
Loader.add_implicit_resolver(f"{_TAG}merge", re.compile(r"^<<$"), ["<"])


def read(path: Path, environ: Mapping[str, str]) -> tuple[Any, Origin]:
    """The document's value and its origin. Raises ConfigError for everything that can be wrong with a file."""
    return read_text(text_of(path), str(path), environ)


def text_of(path: Path) -> str:
    """The file's text. Raises ConfigError."""
    file = str(path)
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from error
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{file}: larger than {MAX_BYTES} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}:{line}: not UTF-8: byte 0x{raw[error.start]:02x}") from error


def read_text(text: str, file: str, environ: Mapping[str, str]) -> tuple[Any, Origin]:
    """As ``read``, from text; ``file`` is the name in errors."""
    try:
        node = _compose(text, file)
        reader = _Reader(file, environ)
        value = reader.read(node, ()) if node is not None else None
    except RecursionError as error:
        raise ConfigError(f"{file}: nested too deeply") from error
    return value, reader.origin


def _compose(text: str, file: str) -> Node | None:
    loader: Loader | None = None
    try:
        loader = Loader(text)
        node: Node | None = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        # The error's own text would quote the line, and a key may be on it.
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        lines = text.splitlines()
        if line <= len(lines) and "${" in lines[line - 1]:
            problem += " (between braces or brackets, ${...} must be in quotes)"
        raise ConfigError(f"{file}:{line}: not YAML: {problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{file}:{line}: not YAML: the character {error.character!r} is not allowed") from None
    finally:
        if loader is not None:
            loader.dispose()
    return node


class _Reader:
    """One pass over a node tree."""

    def __init__(self, file: str, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._lines: dict[KeyPath, int] = {}
        self._references: dict[KeyPath, Reference] = {}
        self._values = 0
        self.origin = Origin(file=file, lines=self._lines, references=self._references)

    def read(self, node: Node, path: KeyPath) -> Any:
        self._lines.setdefault(path, node.start_mark.line + 1)
        self._count(path, len(path))
        if isinstance(node, MappingNode) and node.tag == f"{_TAG}map":
            value: dict[str, Any] = {}
            for name, (line, child) in self._entries(node, path, len(path)).items():
                self._lines[(*path, name)] = line
                value[name] = self.read(child, (*path, name))
            return value
        if isinstance(node, SequenceNode) and node.tag == f"{_TAG}seq":
            return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        raise self.origin.error(path, f"the tag {node.tag[:60]!r} is not allowed")

    def _count(self, path: KeyPath, depth: int) -> None:
        self._values += 1
        if self._values > MAX_VALUES:
            raise self.origin.error(path, f"more than {MAX_VALUES} values, aliases counted each time")
        if depth > MAX_DEPTH:
            raise self.origin.error(path[:4], f"nested more than {MAX_DEPTH} deep")

    def _entries(self, node: MappingNode, path: KeyPath, depth: int) -> dict[str, tuple[int, Node]]:
        """Key -> its line and its value's node; a key of the mapping itself replaces a merged one."""
        self._count(path, depth)
        own: dict[str, tuple[int, Node]] = {}
        merged: dict[str, tuple[int, Node]] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == f"{_TAG}merge":
                for source in value.value if isinstance(value, SequenceNode) else [value]:
                    if not isinstance(source, MappingNode):
                        raise self._at(line, path, "<< merges mappings only")
                    merged = {**self._entries(source, path, depth + 1), **merged}
            elif not isinstance(key, ScalarNode) or key.tag != f"{_TAG}str":
                written = repr(key.value) if isinstance(key, ScalarNode) else "a list or mapping"
                raise self._at(line, path, f"a key must be a string, found {written}; put it in quotes")
            elif key.value in own:
                first = own[key.value][0]
                raise self._at(line, (*path, key.value), f"this key is given twice, first on line {first}")
            else:
                own[key.value] = (line, value)
        return {**merged, **own}

    def _at(self, line: int, path: KeyPath, problem: str) -> ConfigError:
        self._lines[path] = line
        return self.origin.error(path, problem)

    def _scalar(self, node: ScalarNode, path: KeyPath) -> Any:
        kind, text = node.tag.removeprefix(_TAG), node.value
        try:
            if kind in ("str", "merge"):
                return self._substitute(text, path)
            if (value := scalar(kind, text)) is not NotImplemented:
                return value
        except ValueError:
            raise self.origin.error(path, f"this cannot be read as {kind}") from None
        raise self.origin.error(path, f"the tag {node.tag[:60]!r} is not allowed")

    def _substitute(self, text: str, path: KeyPath) -> str:
        if "$" not in text:
            return str(text)
        referred = False

        def fill(found: re.Match[str]) -> str:
            nonlocal referred
            if found[0] == "$$":
                return "$"
            name = found["name"]
            if name is None:
                raise self.origin.error(path, "${ begins a reference: write ${NAME} or ${NAME:-default}, or $${ for ${")
            referred = True
            value = self._environ.get(name)
            if found["default"] is not None:
                return value or found["default"]
            if value is None:
                raise self.origin.error(path, f"the environment has no {name}: set it, or write ${{{name}:-default}}")
            return value

        filled = _REFERENCE.sub(fill, text)
        if referred:
            self._references[path] = Reference(text=text, value=filled)
        return filled


def scalar(kind: str, text: str) -> Any:
    """The value of a scalar of that kind (``bool``, ``null``, ``int``, ``float``), else NotImplemented.

    Raises ValueError if ``text`` is none.
    """
    match kind:
        case "null":
            return None
        case "bool":
            if text.lower() not in ("true", "false"):
                raise ValueError(text)
            return text.lower() == "true"
        case "int":
            digits = text.replace("_", "")
            return int(digits, 0) if digits.lower().startswith(("0x", "0o")) else int(digits)
        case "float":
            # YAML writes .inf and .nan where Python has inf and nan; a word without the dot is a string.
            lowered = text.replace("_", "").lower()
            return float(lowered.replace(".", "", 1) if lowered.lstrip("+-") in (".inf", ".nan") else lowered)
    return NotImplemented
