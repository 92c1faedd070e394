"""Templates whose loop over the messages can begin behind known ones, if the text of these is known, too.

Most templates have a beginning, a loop over the messages, and an end. Where the loop makes a message's text of nothing
that a later chat may have otherwise, that text need not be made again. Such a template is compiled in this form:

    {% set kvgate_from, kvgate_to = kvgate_begin(messages, (VALUES,), (NUMBERS,)) %}
    {% for message in messages[kvgate_from:kvgate_to] %}BODY{% endfor %}
    {% set kvgate_none = kvgate_end() %}
    {% for message in messages[kvgate_to:] %}BODY{% endfor %}

The text up to the message ``kvgate_from`` is known. It is known up to ``kvgate_to`` from this chat on. What is before
and behind the loop is run each time, with all messages.

Rules: what is known to be harmless in a loop is listed (``HARMLESS``, ``GLOBALS``, ``place``), and a template with
anything else is rendered whole each time. The body may read

- its message, and those at a fixed distance from it;
- its place, whether it is the first, and whether it is the last: no message is known from which others are not far
  enough behind;
- variables from outside, VALUES, which are compared: the text is known only for the same ones;
- variables from outside that are only compared with the place, NUMBERS: all that are behind the known messages are the
  same.

It sets no variable that the next message sees: a namespace may not be set in it. VALUES and NUMBERS are read before the
loop, also where the body would read them later or not at all. If one of them raises, the chat is rendered whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import jinja2
from jinja2 import Environment, Template, meta, nodes

HARMLESS: tuple[type[nodes.Node], ...] = (
    nodes.Add,
    nodes.And,
    nodes.Assign,
    nodes.AssignBlock,
    nodes.Call,
    nodes.Compare,
    nodes.Concat,
    nodes.CondExpr,
    nodes.Const,
    nodes.Continue,
    nodes.Dict,
    nodes.Div,
    nodes.Filter,
    nodes.FloorDiv,
    nodes.For,
    nodes.Getattr,
    nodes.Getitem,
    nodes.If,
    nodes.Keyword,
    nodes.List,
    nodes.Mod,
    nodes.Mul,
    nodes.Name,
    nodes.Neg,
    nodes.Not,
    nodes.Operand,
    nodes.Or,
    nodes.Output,
    nodes.Pair,
    nodes.Pos,
    nodes.Pow,
    nodes.Slice,
    nodes.Sub,
    nodes.TemplateData,
    nodes.Test,
    nodes.Tuple,
)
"""Parts of a loop that only make text, or variables that the next message does not see."""

GLOBALS = frozenset({"raise_exception", "range"})
"""Functions that give the same whenever they are called."""

BEGIN, END, BACK = "kvgate_begin", "kvgate_end", "kvgate_back"
FROM, TO, NONE = "kvgate_from", "kvgate_to", "kvgate_none"
OURS = "kvgate_"

ORDER = frozenset({"gt", "gteq", "lt", "lteq"})


@dataclass(frozen=True, eq=False, slots=True)
class SplitTemplate:
    """``template``: in the form above. ``ahead``: how many messages behind a message its text depends on."""

    template: Template
    ahead: int


class _Unfit(Exception):
    """What the loop makes of a message may depend on something else."""


def split_loop(environment: Environment, source: str) -> SplitTemplate | None:
    """The template in the form above; None: it has no such loop. Takes some 20 ms."""
    try:
        found = list(_loops(environment.parse(source)))
        for place, _ in reversed(found):
            try:
                return _split(environment, source, place)
            except _Unfit:
                continue
    except (jinja2.TemplateError, RecursionError):
        pass
    return None


def _loops(tree: nodes.Template) -> list[tuple[int, nodes.For]]:
    """Loops that are no part of anything, over a variable."""
    return [
        (place, node)
        for place, node in enumerate(tree.body)
        if isinstance(node, nodes.For)
        and isinstance(node.iter, nodes.Name)
        and not (node.test or node.else_ or node.recursive)
    ]


def _split(environment: Environment, source: str, place: int) -> SplitTemplate:
    tree, again = environment.parse(source), environment.parse(source)
    known, rest = tree.body[place], again.body[place]
    assert isinstance(known, nodes.For)
    assert isinstance(rest, nodes.For)
    assert isinstance(known.iter, nodes.Name)
    macros = _closed_macros(environment, tree)
    outside = _undeclared(environment, known)
    first, second = _Body(known.iter.name, FROM, macros), _Body(known.iter.name, TO, macros)
    first.enter(known)
    second.enter(rest)
    if not _harmless_globals(environment, first.names, again):
        raise _Unfit
    values = sorted((outside & first.names) - macros)
    name = known.iter.name
    given = [_name(name), _tuple([_name(one) for one in values]), _tuple(first.numbers)]
    both = nodes.Tuple([nodes.Name(FROM, "store"), nodes.Name(TO, "store")], "store")
    known.iter = nodes.Getitem(_name(name), nodes.Slice(_name(FROM), _name(TO), None), "load")
    rest.iter = nodes.Getitem(_name(name), nodes.Slice(_name(TO), None, None), "load")
    tree.body[place : place + 1] = [
        nodes.Assign(both, _call(BEGIN, given)),
        known,
        nodes.Assign(nodes.Name(NONE, "store"), _call(END, [])),
        rest,
    ]
    tree.set_lineno(1).set_environment(environment)
    return SplitTemplate(environment.from_string(tree), first.ahead)


def _closed_macros(environment: Environment, tree: nodes.Template) -> frozenset[str]:
    """Macros that give the same for the same arguments."""
    found = set()
    for macro in (node for node in tree.body if isinstance(node, nodes.Macro)):
        body = _Body("", FROM, frozenset())
        try:
            for node in (*macro.defaults, *macro.body):
                body.rewrite(node, inner=True)
        except _Unfit:
            continue
        if not _undeclared(environment, macro) and _harmless_globals(environment, body.names, tree):
            found.add(macro.name)
    names = [macro.name for macro in tree.find_all(nodes.Macro)]
    return frozenset(name for name in found - _set_in(tree) if names.count(name) == 1)


def _undeclared(environment: Environment, node: nodes.Node) -> set[str]:
    """Variables that the node reads from outside, without the functions that all templates have."""
    alone = nodes.Template([node], lineno=1)
    alone.set_environment(environment)
    return meta.find_undeclared_variables(alone)


def _harmless_globals(environment: Environment, names: set[str], tree: nodes.Template) -> bool:
    """Whether of the functions that all templates have those of these ``names`` are harmless, and are meant."""
    used = names & environment.globals.keys()
    return (
        used <= GLOBALS
        and used.isdisjoint(_set_in(tree))
        and all(m.name not in used for m in tree.find_all(nodes.Macro))
    )


def _set_in(tree: nodes.Node) -> set[str]:
    return {node.name for node in tree.find_all(nodes.Name) if node.ctx != "load"}


@dataclass(eq=False, slots=True)
class _Body:
    """Looks at a loop over the list ``messages``, and changes it to begin at the message ``start``, a variable.

    ``names``: variables that it reads. ``numbers``: those that it only compares with the message's place. ``own``:
    variables that it sets.
    """

    messages: str
    start: str
    macros: frozenset[str]
    names: set[str] = field(default_factory=set)
    numbers: list[nodes.Expr] = field(default_factory=list)
    own: set[str] = field(default_factory=set)
    ahead: int = 0

    def enter(self, loop: nodes.For) -> None:
        """Change the loop itself. Raises _Unfit."""
        self.own = _set_in(loop)
        self.rewrite(loop.target)
        loop.body = [self.rewrite(one) for one in loop.body]

    def rewrite(self, node: nodes.Node, *, inner: bool = False) -> nodes.Node:
        """What takes the node's place. ``inner``: ``loop`` is that of another loop. Raises _Unfit."""
        if not isinstance(node, HARMLESS):
            raise _Unfit
        if isinstance(node, nodes.Name):
            self._name(node, inner)
            return node
        if isinstance(node, nodes.Getattr) and _is_name(node.node, "loop") and not inner:
            return self._place(node)
        if isinstance(node, nodes.Compare) and not inner and self._is_limit(node):
            node.expr = self._place(node.expr)
            return node
        if isinstance(node, nodes.Getitem) and _is_name(node.node, self.messages) and not inner:
            node.arg = self._other(node.arg)
            return node
        if isinstance(node, nodes.Filter) and node.name == "random":
            raise _Unfit
        if isinstance(node, nodes.Call) and not self._is_harmless_call(node):
            raise _Unfit
        if isinstance(node, nodes.For):
            return self._inner_loop(node, inner)
        for name, value in list(node.iter_fields()):
            setattr(node, name, self._field(value, inner))
        return node

    def _field(self, value: object, inner: bool) -> object:
        if isinstance(value, nodes.Node):
            return self.rewrite(value, inner=inner)
        if isinstance(value, list):
            return [self._field(one, inner) for one in value]
        return value

    def _is_harmless_call(self, node: nodes.Call) -> bool:
        """Whether it is of a function or a macro that gives the same each time, or of a method: no value that is
        compared has one that does not."""
        called = node.node
        return (
            called.name in GLOBALS | self.macros
            if isinstance(called, nodes.Name)
            else isinstance(called, nodes.Getattr)
        )

    def _inner_loop(self, node: nodes.For, inner: bool) -> nodes.Node:
        if node.recursive or node.else_:
            raise _Unfit
        node.iter = self.rewrite(node.iter, inner=inner)
        self.rewrite(node.target, inner=inner)
        if node.test is not None:
            node.test = self.rewrite(node.test, inner=True)
        node.body = [self.rewrite(one, inner=True) for one in node.body]
        return node

    def _name(self, node: nodes.Name, inner: bool) -> None:
        name = node.name
        if name == self.messages or name.startswith(OURS) or (name == "loop" and not (inner and node.ctx == "load")):
            raise _Unfit
        if node.ctx == "load":
            self.names.add(name)

    def _place(self, node: nodes.Expr) -> nodes.Expr:
        """``loop.index0`` and the like, as in a loop over all messages."""
        assert isinstance(node, nodes.Getattr)
        match node.attr:
            case "index0" | "index":
                return nodes.Add(node, _name(self.start))
            case "first":
                return nodes.And(node, nodes.Not(_name(self.start)))
            case "last":
                self.ahead = max(self.ahead, 1)
                return nodes.Const(False) if self.start == FROM else node
        raise _Unfit

    def _is_limit(self, node: nodes.Compare) -> bool:
        """Whether the message's place is compared with a variable, which is noted."""
        if not (_is_place(node.expr) and len(node.ops) == 1 and node.ops[0].op in ORDER):
            return False
        number = node.ops[0].expr
        of = number.node if isinstance(number, nodes.Getattr) else number
        if not isinstance(of, nodes.Name) or of.name in ("loop", self.messages) or of.name.startswith(OURS):
            return False
        if of.name in self.own:  # it has no value before the loop
            raise _Unfit
        self.numbers.append(number)
        return True

    def _other(self, place: nodes.Expr) -> nodes.Expr:
        """The place of another message, at a fixed distance."""
        distance = 0
        if isinstance(place, nodes.Add | nodes.Sub) and isinstance(place.right, nodes.Const):
            distance = place.right.value
            if type(distance) is not int or distance < 0:
                raise _Unfit
            distance = distance if isinstance(place, nodes.Add) else -distance
            place = place.left
        if not _is_place(place):
            raise _Unfit
        self.ahead = max(self.ahead, distance)
        other = nodes.Add(self._place(place), nodes.Const(distance))
        return _call(BACK, [other]) if distance < 0 else other


def _is_place(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Getattr) and _is_name(node.node, "loop") and node.attr == "index0"


def _is_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name


def _name(name: str) -> nodes.Name:
    return nodes.Name(name, "load")


def _tuple(items: Sequence[nodes.Expr]) -> nodes.Tuple:
    return nodes.Tuple(list(items), "load")


def _call(name: str, given: list[nodes.Expr]) -> nodes.Call:
    return nodes.Call(_name(name), given, [], None, None)
