"""The jinja environment in which chat templates run: the same as that of ``transformers``, in our own code.

Source: ``_cached_compile_jinja_template`` of ``transformers/utils/chat_template_utils.py``, in 5.19 (vLLM 0.32 takes
5.16 to 5.19) and in 5.23: blocks are trimmed, ``{% break %}``, ``{% continue %}`` and ``{% generation %}`` are tags,
``tojson`` is plain JSON, ``raise_exception`` and ``strftime_now`` are functions, and a template cannot change its
arguments. As in 5.23, ``dict`` and ``namespace`` refuse names that are of use only to escape the sandbox: a template
that uses them renders in 5.19 and is an error here. An upgrade of the library changes no prompt.

For each ``a.b`` the sandbox of jinja first tries the attribute, which nearly always raises for a dict, then the key,
and then checks whether the value is safe. That takes 1 to 2 us each time, and 0.4 ms for a chat of 80 messages. This
environment overrides the methods that jinja documents for this, and returns early where the type and the name decide: a
dict has only the attributes of its type, the properties of a loop are numbers, and methods of a string are safe unless
they format it. All other cases go to the sandbox. A template is code: its memory and time are not bounded, except by
the limit of ``range`` (100,000 steps) and Python's recursion limit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, MutableMapping
from datetime import datetime
from types import BuiltinMethodType
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from gateway.core.clock import SystemClock
from gateway.framework import Clock

_OF_DICTS = frozenset(dir(dict))
_OF_LOOPS = {"depth", "depth0", "first", "index", "index0", "last", "length", "revindex", "revindex0"}
_OF_TEXTS = {name for name in dir(str) if not name.startswith("_")} - {"format", "format_map"}
_SAFE = frozenset({*((LoopContext, name) for name in _OF_LOOPS), *((str, name) for name in _OF_TEXTS)})
"""Types and attributes that the sandbox lets through as they are."""
_SCALARS = frozenset({bool, float, int, str, type(None)})
"""A value of one of these types in a namespace is returned without a check. Values of other types may be methods that
format."""


class Generation(Extension):
    """``{% generation %}`` marks the assistant's part for training. Its body is a block of its own, as in
    ``transformers``: what is set inside is not seen outside."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        """The tag and its body, up to ``{% endgeneration %}``."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    @pass_eval_context
    def _render(self, context: EvalContext, caller: Callable[[], str]) -> str:
        return caller()


class ChatNamespace(Namespace):
    """``namespace()`` of a template. Names with an underscore are refused."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *given = args  # ``self`` may be a name in the namespace
        values = dict(*given, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class ChatDict:
    """``dict`` of a template: makes dicts, and has nothing of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """As ``dict.fromkeys``."""
        return dict.fromkeys(*args)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs chat templates."""

    def __init__(self, clock: Clock | None = None) -> None:
        """``clock``: what ``strftime_now`` reads, in the machine's time zone."""
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
        self._clock = clock or SystemClock()
        self.filters["tojson"] = to_json
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = self._strftime_now
        self.globals["dict"] = ChatDict()
        self.globals["namespace"] = ChatNamespace

    def make_globals(self, d: MutableMapping[str, Any] | None) -> MutableMapping[str, Any]:
        """One dict for each template, where jinja chains two: each rendering copies it, and nobody changes it later."""
        return {**self.globals, **(d or {})}

    def getattr(self, obj: Any, attribute: str) -> Any:
        """``obj.attribute`` in a template, as the sandbox gives it."""
        kind = type(obj)
        if kind is dict:
            if attribute not in _OF_DICTS:
                return obj[attribute] if attribute in obj else self.undefined(None, obj, attribute)
        elif (kind, attribute) in _SAFE:
            try:
                return getattr(obj, attribute)
            except AttributeError:  # raised by the loop's iterable; the sandbox then treats the attribute as missing
                return self.undefined(None, obj, attribute)
        elif kind is ChatNamespace:
            try:
                found = getattr(obj, attribute)
            except AttributeError:
                return self.undefined(None, obj, attribute)
            if type(found) in _SCALARS:
                return found
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """``obj[argument]`` in a template, as the sandbox gives it."""
        if type(obj) is dict and type(argument) is str:
            if argument in obj:
                return obj[argument]
            if argument not in _OF_DICTS:
                return self.undefined(None, obj, argument)
        elif type(obj) is list and type(argument) is int:
            try:
                return obj[argument]
            except IndexError:
                return self.undefined(obj=obj, name=argument)  # type: ignore[arg-type]  # as the sandbox does it
        return super().getitem(obj, argument)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """``obj(...)`` in a template, as the sandbox does it."""
        if type(obj) is BuiltinMethodType:
            # A method of a string carries no mark: neither "unsafe" nor "pass the context". jinja adds these arguments
            # for functions that take the context, so they are dropped.
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            return obj(*args, **kwargs)
        return super().call(context, obj, *args, **kwargs)

    def _strftime_now(self, format: str) -> str:
        return datetime.fromtimestamp(self._clock.wall()).strftime(format)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter ``tojson``: unlike jinja's it escapes nothing for HTML. Raises TypeError if ``value`` is not JSON."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: str) -> NoReturn:
    """Called by a template to refuse a chat. Raises jinja2.TemplateError."""
    raise TemplateError(message)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(
            "Chat templates cannot store underscore-prefixed attributes on a namespace, but got "
            f"{name!r}. Please rename the attribute."
        )
