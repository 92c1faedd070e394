"""Covers: ARCHITECTURE.md.

No class has more than 20 fields and no function more than 8 parameters, unless a comment beside it says why:
``# 9 parameters: <reason>`` or ``# 21 fields: <reason>``, on the line of the ``def`` or ``class`` or just above it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGES = ("gateway", "scorers", "filters", "pickers", "queues")

FIELDS, PARAMETERS = 20, 8
REASON = re.compile(r"# (?P<count>\d+) (?P<what>fields|parameters): \S")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Shape(NamedTuple):
    """A class or a function. ``what``: ``fields`` or ``parameters``. ``said``: the count in its reason, if any."""

    name: str
    what: str
    count: int
    said: int | None

    @property
    def fits(self) -> bool:
        """``said`` goes with the count, so that a reason is read again when there is one more."""
        return self.count == self.said if self.count > limit(self.what) else self.said is None


def limit(what: str) -> int:
    return FIELDS if what == "fields" else PARAMETERS


def fields(node: ast.ClassDef) -> set[str]:
    """What its objects hold: annotated in its body, as in dataclasses, or assigned to ``self`` in ``__init__``."""
    found = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign)
        and isinstance(each.target, ast.Name)
        and not ast.unparse(each.annotation).startswith(("ClassVar", "InitVar"))
    }
    for function in node.body:
        if isinstance(function, Function) and function.name == "__init__":
            found |= {
                each.attr
                for each in ast.walk(function)
                if isinstance(each, ast.Attribute)
                and isinstance(each.ctx, ast.Store)
                and isinstance(each.value, ast.Name)
                and each.value.id == "self"
            }
    return found


def parameters(node: Function, *, method: bool) -> int:
    """Without ``self`` or ``cls``."""
    given = node.args
    count = len([*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))])
    static = any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in node.decorator_list)
    return count - int(method and not static)


def shapes(text: str) -> Iterator[Shape]:
    """Every class and every function of a source."""
    lines, tree = text.splitlines(), ast.parse(text)
    methods = {id(each) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for each in node.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield Shape(node.name, "fields", len(fields(node)), reason(lines, node, "fields"))
        elif isinstance(node, Function):
            count = parameters(node, method=id(node) in methods)
            yield Shape(node.name, "parameters", count, reason(lines, node, "parameters"))


def reason(lines: list[str], node: ast.ClassDef | Function, what: str) -> int | None:
    """The count in the comment beside ``node``: on its own line, or in those directly above it and its decorators."""
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1
    above = first
    while above and lines[above - 1].lstrip().startswith("#"):
        above -= 1
    for line in (*lines[above:first], lines[node.lineno - 1]):
        if (found := REASON.search(line)) is not None and found["what"] == what:
            return int(found["count"])
    return None


SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def test_nothing_is_too_wide_without_a_reason() -> None:
    wide = [
        f"{path.relative_to(ROOT)}: {shape.name}: {shape.count} {shape.what}"
        for path in SOURCES
        for shape in shapes(path.read_text())
        if not shape.fits
    ]
    assert wide == [], f"more than {FIELDS} fields or {PARAMETERS} parameters, or a reason that does not fit"


WIDE = """
class Wide:  # 3 fields: said
    a: int
    b: ClassVar[int] = 1

    def __init__(self, x):
        self.c, self.d = x
"""


def test_fields_are_those_that_objects_hold() -> None:
    assert list(shapes(WIDE)) == [Shape("Wide", "fields", 3, 3), Shape("__init__", "parameters", 1, None)]


def test_parameters_are_all_that_a_caller_may_give() -> None:
    text = "# 6 parameters: said\n# on two lines\n@cache\ndef f(a, /, b, *c, d, e=1, **f): ...\n"
    assert list(shapes(text)) == [Shape("f", "parameters", 6, 6)]
    text = "class A:\n  def f(self, a): ...\n  @classmethod\n  def g(cls): ...\n  @staticmethod\n  def h(a): ...\n"
    assert [shape.count for shape in shapes(text)] == [0, 1, 0, 1]


def test_a_reason_counts_as_long_as_it_says_how_many_there_are() -> None:
    fits = {said: Shape("f", "parameters", 9, said).fits for said in (None, 8, 9, 10)}
    assert fits == {None: False, 8: False, 9: True, 10: False}
    assert Shape("f", "parameters", 8, None).fits
    assert not Shape("f", "parameters", 8, 8).fits, "there is none to give"
