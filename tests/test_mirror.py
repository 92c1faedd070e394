"""Covers: ARCHITECTURE.md.

Tests mirror the rooms: who changes a file finds its tests by its name, ``tests/<folder>/test_<name>*.py``. A test of
several files at once, and one with a name of its own, says what it covers in the first paragraph of its docstring:
``Covers: gateway/proxy/upstream/commit.py, gateway/proxy/serving/relay.py.``
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
SOURCES = ("gateway", "scorers", "filters", "pickers", "queues")

ELSEWHERE = (
    "attack",
    "benchmarks",
    "deploy",
    "engines",
    "envoy",
    "examples",
    "kubernetes",
    "simulator",
    "support",
    "data",
)
"""Folders of tests that mirror something else, or nothing: whole processes, real engines, what is shipped beside."""

SMALL = 40
"""Lines; a shorter file is tested with those that use it."""


def has_code(path: Path) -> bool:
    """Whether there is a function that does something: a file of types, protocols and constants has none."""
    functions = (
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )
    return any(not does_nothing(statement) for function in functions for statement in function.body)


def does_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, (ast.Pass, ast.Raise))


def sources() -> list[Path]:
    """Files that want a test; settings are tested as they are read."""
    found = [path for top in SOURCES for path in (ROOT / top).rglob("*.py")]
    return sorted(
        path.relative_to(ROOT)
        for path in found
        if path.name not in ("__init__.py", "settings.py")
        and len(path.read_text().splitlines()) >= SMALL
        and has_code(path)
    )


def files_of_tests() -> list[Path]:
    found = (path.relative_to(TESTS) for path in TESTS.rglob("test_*.py"))
    return sorted(path for path in found if path.parts[0] not in ELSEWHERE)


@cache
def covered(test: Path) -> list[Path]:
    """What a test says that it covers."""
    said = ast.get_docstring(ast.parse((TESTS / test).read_text())) or ""
    first = " ".join(said.partition("\n\n")[0].split())
    if not first.startswith("Covers: "):
        return []
    return [Path(name) for name in first.removeprefix("Covers: ").removesuffix(".").split(", ")]


def mirrors(test: Path) -> list[Path]:
    """The sources that the test's own name says: at most one in each of the packages."""
    tops = [Path("gateway"), Path()]
    words = test.stem.removeprefix("test_").split("_")
    names = ["_".join(words[:count]) for count in range(len(words), 0, -1)]
    paths = [top / test.parent / f"{name}.py" for top in tops for name in names]
    return [path for path in paths if (ROOT / path).is_file()][:1]


def test_every_source_has_its_test() -> None:
    known = {path for test in files_of_tests() for path in (*mirrors(test), *covered(test))}
    assert [str(path) for path in sources() if path not in known] == []


def test_every_test_has_its_source_or_says_what_it_covers() -> None:
    assert [str(test) for test in files_of_tests() if not mirrors(test) and not covered(test)] == []


def test_what_tests_cover_is_there() -> None:
    lost = [f"{test}: {path}" for test in files_of_tests() for path in covered(test) if not (ROOT / path).is_file()]
    assert lost == []
