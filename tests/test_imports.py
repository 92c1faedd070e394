"""Covers: ARCHITECTURE.md.

Who may import whom: the table of ARCHITECTURE.md, held against every import of the shipped code, late ones too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("gateway", "scorers", "filters", "pickers", "queues", "simulator")

ROOMS = ("api", "tokens", "kvcache", "fleet", "flow", "scheduling", "tenants", "observability")
SETTINGS = (
    *(f"gateway.{room}.settings" for room in (*ROOMS, "discovery", "epp", "proxy", "sharing")),
    "gateway.discovery.kubernetes_settings",
    "gateway.tenants.limit_settings",
)

SHARED = ("gateway.framework", "gateway.core", "gateway.errors")
COMPOSE = tuple(
    f"gateway.{name}"
    for name in (
        *(
            "addresses",
            "app",
            "discovering",
            "ending",
            "feed",
            "kept",
            "remembered",
            "learned",
            "objectives",
            "pricing",
            "queueing",
            "reload",
            "replicating",
            "serve",
        ),
        *("doors", "listeners", "picker_listeners", "scaling", "tenancy", "wiring"),
    )
)
# But replay, which runs in virtual time.
COMMANDS = tuple(
    f"gateway.commands.{name}"
    for name in ("check", "demo", "doctor", "envoy", "explain", "interview", "keys", "processes")
)
PLACES = (
    *("gateway.placement", "gateway.scheduling", "gateway.kvcache.index", "gateway.fleet.load"),
    "gateway.sharing",
)
SERVES = (
    *("gateway.proxy", "gateway.config", "gateway.http1", "gateway.placement"),
    *("gateway.sharing", "gateway.valkey", "gateway.discovery"),
    *(f"gateway.{room}" for room in ROOMS),
)
# What a worker knows of its parent; the rest of that room is the parent.
POST = (
    *("gateway.workers.post", "gateway.workers.channel", "gateway.workers.words"),
    *("gateway.sharing", "gateway.config", *SHARED),
)
EDGES = ("gateway.epp", "gateway.notify", "gateway.restart")
EVERYTHING = ("gateway", "scorers", "filters", "pickers", "queues", "simulator")

# Who -> what of ours it may import; whatever is below a name is part of it. The first that matches decides.
TABLE: dict[str, tuple[str, ...]] = {
    "gateway.framework": ("gateway.framework",),
    "gateway.core": ("gateway.core", "gateway.framework"),
    "gateway.errors": ("gateway.framework",),
    "gateway.notify": ("gateway.errors",),
    "gateway.standard_streams": (),
    "gateway.kvcache.index": ("gateway.kvcache.index", "gateway.kvcache.settings", *SHARED),
    "gateway.fleet.load": ("gateway.fleet.load", "gateway.fleet.settings", *SHARED),
    "gateway.http1": ("gateway.http1", *SHARED),
    "gateway.restart": ("gateway.restart", *SHARED),
    "gateway.valkey": ("gateway.valkey", *SHARED),
    "gateway.sharing": ("gateway.sharing", "gateway.fleet.load", "gateway.valkey", *SHARED),
    **{f"gateway.{room}": (f"gateway.{room}", *SHARED) for room in ROOMS},
    "gateway.fleet": ("gateway.fleet", "gateway.http1", "gateway.sharing", *SHARED),
    "gateway.discovery": (
        *("gateway.discovery", "gateway.fleet.settings", "gateway.fleet.address", *SHARED),
        *("gateway.config.decode", "gateway.config.document", "gateway.config.origin"),
    ),
    "gateway.tenants": ("gateway.tenants", "gateway.sharing", "gateway.valkey", *SHARED),
    "gateway.config": ("gateway.config", *SHARED, "gateway.scheduling", *SETTINGS),
    "gateway.placement": (*PLACES, *SHARED),
    "gateway.flow": ("gateway.flow", *PLACES, *SHARED),
    "gateway.proxy.upstream": (
        *("gateway.proxy.upstream", "gateway.proxy.memory", "gateway.proxy.settings", *SHARED),
        *("gateway.api", "gateway.fleet", "gateway.http1"),
    ),
    "gateway.proxy.serving": (
        *("gateway.proxy.serving", "gateway.proxy.upstream"),
        *("gateway.proxy.memory", "gateway.proxy.settings", *SERVES[1:], *SHARED),
    ),
    "gateway.proxy": (*SERVES, *SHARED, "gateway.restart.sockets"),
    "gateway.epp.transport": ("gateway.epp.transport", "gateway.epp.messages", "gateway.epp.stream", *SHARED),
    "gateway.epp": (
        *("gateway.epp", "gateway.proxy.serving", "gateway.proxy.upstream"),
        *("gateway.proxy.memory", "gateway.proxy.settings", *SERVES[1:], *SHARED),
    ),
    **dict.fromkeys(("gateway.workers.post", "gateway.workers.channel", "gateway.workers.words"), POST),
    **dict.fromkeys(COMPOSE, (*COMPOSE, *SERVES, *SHARED, *EDGES, *POST)),
    "gateway.workers": ("gateway.workers", *COMPOSE, *SERVES, *SHARED, "gateway.notify", "gateway.restart"),
    "gateway.commands.demo": ("gateway.commands.demo", "gateway.commands.processes", *SHARED),
    "gateway.commands.processes": (),
    "gateway.commands.replay": (
        *("gateway.commands.replay", *SHARED, "gateway.config", "gateway.placement", "gateway.proxy.settings"),
        *("gateway.sharing", "simulator"),
        *(f"gateway.{room}" for room in ROOMS),
    ),
    **dict.fromkeys(("gateway.commands", "gateway.cli"), EVERYTHING),
    "gateway": (),
    "scorers": ("gateway.framework",),
    "filters": ("gateway.framework",),
    "pickers": ("gateway.framework",),
    "queues": ("queues", "gateway.framework"),
    "simulator": ("simulator",),
}

# What of others' some may import; the rest may import any dependency.
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "gateway.framework": (),
    "gateway.core": ("msgspec",),  # what is made for each request: its fields are written in C
    "gateway.errors": (),
    "gateway.notify": (),
    "gateway.scheduling": (),
    "gateway.commands.demo": ("httpx", "matplotlib", "rich"),
    "gateway.http1": ("httptools",),
    "gateway.proxy.serving": ("httpx", "msgspec", "zmq"),  # no web framework
    "gateway.epp.transport.certificates": ("cryptography",),
    "gateway.epp": ("google", "hpack", "msgspec", "multidict", "orjson"),
    "gateway.commands.processes": (),
    "gateway.cli": ("rich", "uvloop"),
    "scorers": (),
    "filters": (),
    "pickers": (),
    "queues": (),
}

# aiohttp is the clients' and the operators' front door, and nothing else; its client asks workers only.
FRONT_DOOR = ("gateway.proxy.http", "gateway.proxy.admin", "gateway.workers.front", "gateway.workers.registering")
ASKS_WORKERS = "gateway.workers.asking"
OF_AIOHTTP = (
    *("aiohttp.web", "aiohttp.http", "aiohttp.http_exceptions"),
    *("aiohttp.StreamReader", "aiohttp.EMPTY_PAYLOAD"),
)

# Time, chance and tasks come from outside, or a replay could not be exact.
AMBIENT = {
    "time": {"time", "monotonic", "perf_counter", "sleep"},
    "random": {"random", "choice", "shuffle", "randint", "uniform", "sample"},
    "asyncio": {"create_task", "ensure_future"},
}
AMBIENT_ALLOWED = (*COMPOSE, "gateway.workers", "gateway.cli", *COMMANDS, "gateway.proxy", "simulator")


def modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@dataclass(frozen=True)
class Attribute:
    """``whose.name`` at a line; ``whose``: empty where it is no plain name."""

    line: int
    whose: str
    name: str
    is_called: bool


@cache
def read(path: Path) -> tuple[list[ast.Import | ast.ImportFrom], list[Attribute]]:
    """The imports of a file, and the attributes in it. Read once for all tests: that takes most of their time."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    attributes = [
        Attribute(node.lineno, node.value.id if isinstance(node.value, ast.Name) else "", node.attr, id(node) in called)
        for node in nodes
        if isinstance(node, ast.Attribute)
    ]
    return [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))], attributes


def imports(name: str, path: Path) -> Iterator[tuple[int, str]]:
    """(line, full name) of everything that is imported: of ``from a import b`` the module ``a.b`` if it is one."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in read(path)[0]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
            continue
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *filter(None, [base])])
        for alias in node.names:
            whole = f"{base}.{alias.name}"
            yield node.lineno, whole if whole in MODULES else base


def within(name: str, places: tuple[str, ...]) -> bool:
    return any(name == place or name.startswith(place + ".") for place in places)


def rule(name: str, table: dict[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    for who, whom in table.items():
        if within(name, (who,)):
            return whom
    return None


def within_room(room: str) -> tuple[str, ...]:
    """Settings files that one of this room may import: its own; what is discovered has the settings of engines."""
    rooms = (room, "gateway.fleet") if within(room, ("gateway.discovery",)) else (room,)
    return tuple(name for name in SETTINGS if name.rpartition(".")[0] in rooms)


def breaches(name: str, path: Path) -> list[str]:
    ours, others = rule(name, TABLE), rule(name, THIRD_PARTY)
    assert ours is not None, f"{name} is in no room of the table: give it one"
    if name.startswith("gateway.") and name.endswith(".settings"):
        room = name.rpartition(".")[0]  # some have a second file of settings
        ours = ("gateway.config", *SETTINGS) if room == "gateway.config" else within_room(room)
        others = ()
    found = []
    for line, imported in imports(name, path):
        top = imported.partition(".")[0]
        if top in sys.stdlib_module_names:
            continue
        allowed = within(imported, ours) if top in PACKAGES else others is None or top in others
        # The package itself holds the words and the version.
        if not allowed and not (
            imported == "gateway"
            and within(name, ("gateway.proxy", "gateway.commands", "gateway.cli", "gateway.workers", *COMPOSE))
        ):
            found.append(f"{path.relative_to(ROOT)}:{line}: {name} may not import {imported}")
    return found


def test_imports_keep_to_the_table() -> None:
    assert [breach for name, path in MODULES.items() for breach in breaches(name, path)] == []


def test_the_rooms_are_all_in_the_table() -> None:
    rooms = {name.split(".")[1] for name in MODULES if name.count(".") > 1 and name.startswith("gateway.")}
    assert rooms <= {who.split(".")[1] for who in TABLE if who.count(".") == 1}


def whole_names(path: Path) -> Iterator[str]:
    """What a file imports, with the names that it takes from a package: ``aiohttp.web``."""
    for node in read(path)[0]:
        base = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        yield from (f"{base}{alias.name}" for alias in node.names)


def test_aiohttp_is_the_front_door_and_nothing_else() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name} may not import {imported}"
        for name, path in MODULES.items()
        if name.startswith("gateway") and name != ASKS_WORKERS
        for imported in whole_names(path)
        if within(imported, ("aiohttp",)) and not (within(name, FRONT_DOOR) and within(imported, OF_AIOHTTP))
    ]
    assert found == []


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The files of ``graph`` (who imports whom) that import each other, be it over others."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        left = [start]
        while left:
            for name in graph[left.pop()] - found:
                found.add(name)
                left.append(name)
        return found

    below = {name: reached(name) for name in graph}
    return {frozenset(other for other in below[name] if name in below[other]) for name in graph if name in below[name]}


def test_no_files_import_each_other() -> None:
    """Not over others, not within a function, and not for types only either: who reads one would have to read all."""
    graph = {
        name: {imported for _, imported in imports(name, path) if imported in MODULES} for name, path in MODULES.items()
    }
    assert circles(graph) == set()


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b", "c"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"a"}}, ["a"]),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a", "b"}}, ["abc"]),
        ({"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"c"}}, ["ab", "cd"]),
    ],
)
def test_a_circle_is_found(graph: dict[str, set[str]], found: list[str]) -> None:
    assert circles(graph) == {frozenset(names) for names in found}


def test_a_late_import_and_one_for_types_count(tmp_path) -> None:
    path = tmp_path / "x.py"
    path.write_text(
        "if TYPE_CHECKING:\n    from gateway.fleet.load import ledger\n"
        "def late():\n    from gateway.tokens.native import load\n"
    )
    found = {name for _, name in imports("gateway.proxy.x", path)}
    assert found == {"gateway.fleet.load.ledger", "gateway.tokens.native"}


def test_time_chance_and_tasks_come_from_outside() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{one.line}: {one.whose}.{one.name}"
        for name, path in MODULES.items()
        if not within(name, AMBIENT_ALLOWED) and name not in ("gateway.core.clock", "gateway.core.tasks")
        for one in read(path)[1]
        if one.is_called and one.name in AMBIENT.get(one.whose, ())
    ]
    assert found == []


def test_every_task_is_started_by_a_task_set() -> None:
    """Or its failure is lost. ruff knows ``asyncio.create_task`` only, and no loop's."""
    found = [
        f"{path.relative_to(ROOT)}:{one.line}"
        for name, path in MODULES.items()
        # The demo's users are an asyncio.TaskGroup's, which loses none.
        if name.startswith("gateway.") and not within(name, ("gateway.core.tasks", "gateway.commands.demo"))
        for one in read(path)[1]
        if one.name in ("create_task", "ensure_future")
    ]
    assert found == []


SLOW_TO_IMPORT = ("anthropic", "matplotlib", "openai", "transformers")


def test_no_file_of_tests_imports_for_seconds_before_one_of_its_tests_runs() -> None:
    """Every process of a run collects all tests."""
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "tests").rglob("*.py")
        if (ROOT / "tests" / "engines") not in path.parents
        for statement in ast.parse(path.read_text()).body
        if isinstance(statement, ast.Import | ast.ImportFrom)
        for name in (
            statement.module or "" if isinstance(statement, ast.ImportFrom) else each.name for each in statement.names
        )
        if within(name, SLOW_TO_IMPORT)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("name", "source", "breach"),
    [
        ("gateway.tokens.x", "from gateway.fleet import ledger", "gateway.fleet"),
        ("gateway.tokens.x", "def late():\n    import gateway.fleet.load.ledger", "gateway.fleet.load.ledger"),
        ("gateway.tokens.x", "from ..fleet import ledger", "gateway.fleet"),
        ("gateway.framework.x", "import msgspec", "msgspec"),
        ("gateway.fleet.settings", "from gateway.framework import Clock", "gateway.framework"),
        ("gateway.config.x", "from gateway.fleet import registry", "gateway.fleet"),
        ("gateway.commands.demo.x", "import simulator.engine", "simulator.engine"),
        ("gateway.commands.replay.x", "from gateway.proxy import placement", "gateway.proxy"),
        ("gateway.commands.demo.x", "import aiohttp", "aiohttp"),
        ("scorers.x", "from gateway.errors import ClientError", "gateway.errors"),
        ("scorers.x", "import numpy", "numpy"),
        ("simulator.x", "import gateway", "gateway"),
    ],
)
def test_a_breach_is_found(tmp_path, monkeypatch, name, source, breach) -> None:
    path = tmp_path / "x.py"
    path.write_text(source)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    [found] = breaches(name, path)
    assert breach in found


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("gateway.tokens.x", "from . import render\nfrom gateway.framework import Clock\nimport tokenizers"),
        ("gateway.config.x", "from gateway.fleet.settings import FleetSettings\nimport yaml"),
        ("gateway.config.settings", "from gateway.fleet.settings import FleetSettings"),
        ("gateway.app", "from gateway import __version__\nfrom gateway.fleet.fleet import Fleet"),
        ("gateway.commands.demo.x", "import rich.table\nimport subprocess"),
        (
            "gateway.commands.replay.x",
            "from gateway.fleet.fleet import Fleet\nfrom simulator.virtual.engine import Engine",
        ),
        ("simulator.x", "import zmq\nfrom simulator.engine import Engine"),
    ],
)
def test_what_is_allowed_passes(tmp_path, monkeypatch, name, source) -> None:
    path = tmp_path / "x.py"
    path.write_text(source)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    assert breaches(name, path) == []
