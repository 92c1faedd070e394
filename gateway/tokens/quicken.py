"""Short ways for what chat templates do most: ``message.role``, ``message['role']``, ``loop.first``, ``ns.found``,
``text.strip``.

jinja's sandbox asks each value for an attribute first, which for a dict raises nearly always, then for the key, and
then whether what was found is safe: 1 to 2 us each, 0.4 ms of a chat of 80 messages. Where type and name alone prove
what comes of that, it is done at once: a dict has no attributes but its type's; what a loop says of itself is a number;
a namespace has what was set and nothing else; a method of a text is safe, but for those that format it. Where the value
is a variable, the test stands in the compiled template itself, so that most look-ups call nothing. An object for what
is missing is made only where it can be seen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from jinja2 import Environment, Template, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import LoopContext
from jinja2.tests import TESTS
from jinja2.utils import Namespace

log = logging.getLogger("kvgate.tokens")

TEMPLATES_KEPT = 64

_ATTRIBUTES = frozenset(dir(dict))
_MISSING = object()
_COUNTS = {"first": "index0 == 0", "index": "index0 + 1", "index0": "index0"}
"""What a loop knows by itself, and how."""
_LOOPS = frozenset({*_COUNTS, "depth", "depth0", "last", "length", "revindex", "revindex0"})
"""All numbers and flags of a loop."""
_METHODS = frozenset(name for name in dir(str) if not name.startswith("_")) - {"format", "format_map"}
"""Of texts, all but those that the sandbox replaces."""
_SCALARS = frozenset({bool, float, int, str, type(None)})
_OF_TYPES = frozenset(
    {
        "boolean",
        "defined",
        "false",
        "float",
        "integer",
        "mapping",
        "none",
        "number",
        "string",
        "true",
        "undefined",
    }
)
"""jinja's tests that ask for a value's type only, or whether it is one of Python's constants."""


@lru_cache(TEMPLATES_KEPT)
def quicken(template: str) -> Template | None:
    """``template`` compiled as ``transformers`` does it, with short ways: what it renders is the same, but sooner.

    None where ``transformers`` compiles in another way than 5.16 to 5.23 do, or jinja in another than 3.1 does.

    Raises:
        jinja2.TemplateError: it is no template.
    """
    from transformers.utils import chat_template_utils

    compile_template = getattr(chat_template_utils, "_compile_jinja_template", None)
    if compile_template is None:
        return None
    compiled: Template = compile_template(template)
    if compile_template(template) is not compiled:  # it is not kept: its environment may be everyone's
        return None
    environment: Any = compiled.environment
    environment.getattr = _short_way(environment)
    environment.code_generator_class = _ShortWays
    environment.extend(absent=environment.undefined())
    try:
        quick: Template = environment.from_string(template)
    except (AttributeError, TypeError, SyntaxError) as error:
        log.warning("jinja compiles in an unknown way (%s): chats are rendered more slowly", type(error).__name__)
        return None
    return quick


class _ShortWays(CodeGenerator):
    """Writes, for a look-up in a variable, a choice: the short way if its type allows it, else the whole way.

    ``undefined`` and ``environment`` are names of the code that jinja writes.
    """

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:  # noqa: N802 - jinja's name
        self._weighed = {id(one) for one in _weighed(node)}
        self._typed = {id(one) for one in _typed(node, self.environment)}
        super().visit_Template(node, frame)

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:  # noqa: N802
        variable = self._variable(node.node, frame)
        if variable is not None and node.attr in _COUNTS and variable.endswith("_loop"):
            self.write(f"({variable}.{_COUNTS[node.attr]} if type({variable}) is LoopContext else ")
            super().visit_Getattr(node, frame)
            self.write(")")
        elif variable is not None and node.attr not in _ATTRIBUTES:
            self._write_short(node, variable, node.attr)
            super().visit_Getattr(node, frame)
            self.write(")")
        else:
            super().visit_Getattr(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        variable = self._variable(node.node, frame)
        key = node.arg.value if isinstance(node.arg, nodes.Const) else None
        if variable is not None and type(key) is str and key not in _ATTRIBUTES:
            self._write_short(node, variable, key)
            super().visit_Getitem(node, frame)
            self.write(")")
        else:
            super().visit_Getitem(node, frame)

    def _variable(self, node: nodes.Node, frame: Frame) -> str | None:
        """The Python variable that holds the value of ``node``, if it is a variable."""
        if isinstance(node, nodes.Name) and node.ctx == "load" and not self.environment.is_async:
            return frame.symbols.ref(node.name)
        return None

    def _write_short(self, node: nodes.Node, variable: str, key: str) -> None:
        if id(node) in self._weighed:
            found = f"{variable}.get({key!r})"
        elif id(node) in self._typed:
            found = f"{variable}.get({key!r}, environment.absent)"
        else:
            found = f"({variable}[{key!r}] if {key!r} in {variable} else undefined(obj={variable}, name={key!r}))"
        self.write(f"({found} if type({variable}) is dict else ")


def _weighed(template: nodes.Template) -> Iterator[nodes.Node]:
    """Expressions of which only the truth counts if they are false: None does as well as what is undefined."""
    for node in template.find_all((nodes.If, nodes.CondExpr, nodes.For, nodes.Not, nodes.Or)):
        if isinstance(node, nodes.Not):
            yield from _sides(node.node)
        elif isinstance(node, nodes.Or):
            yield from _sides(node.left)
        elif isinstance(node, nodes.If | nodes.CondExpr | nodes.For) and node.test is not None:
            yield from _sides(node.test)


def _sides(node: nodes.Node) -> Iterator[nodes.Node]:
    if isinstance(node, nodes.And | nodes.Or):
        yield from _sides(node.left)
        yield from _sides(node.right)
    else:
        yield node


def _typed(template: nodes.Template, environment: Environment) -> Iterator[nodes.Node]:
    """Expressions of which only the type counts: one undefined object does as well as another."""
    for test in template.find_all(nodes.Test):
        if test.name in _OF_TYPES and environment.tests.get(test.name) is TESTS.get(test.name):
            yield test.node


def _short_way(environment: Environment) -> Callable[[Any, str], Any]:
    """Of ``environment.getattr``: for what is looked up in anything but a variable."""
    whole_way, undefined = type(environment).getattr.__get__(environment), environment.undefined
    namespace: Any = environment.globals.get("namespace")
    if getattr(namespace, "__getattribute__", None) is not Namespace.__getattribute__:
        namespace = Namespace

    def look_up(value: Any, name: str) -> Any:
        kind = type(value)
        if kind is dict:
            if name not in _ATTRIBUTES:
                found = value.get(name, _MISSING)
                return undefined(obj=value, name=name) if found is _MISSING else found
        elif kind is str:
            if name in _METHODS:
                return getattr(value, name)
        elif kind is namespace:
            try:
                found = getattr(value, name)
            except AttributeError:
                return undefined(obj=value, name=name)
            if type(found) in _SCALARS and not name.startswith("_"):
                return found
        elif kind is LoopContext and name in _LOOPS:
            try:
                return getattr(value, name)
            except AttributeError:  # of what it goes through; the whole way takes it for the loop's own
                return undefined(obj=value, name=name)
        return whole_way(value, name)

    return look_up
