"""What a chat template expects, read from its syntax tree: contents as text or as parts, and its variables.

Source: ``_detect_content_format`` and ``resolve_chat_template_kwargs`` of vLLM 0.32.0 (``vllm/renderers/hf.py``): a
template that loops over a message's content expects parts; any other expects text. A template that cannot be analysed
expects text.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.tokens.conversation import ContentFormat
from gateway.tokens.environment import ChatEnvironment

TEMPLATES_KEPT = 32
"""A model has one template, or one with tools and one without."""


_ENVIRONMENT = ChatEnvironment()

_PLAIN = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])


class _Unreadable(Exception):
    """The template assigns variables in a way that is not analysed."""


@lru_cache(TEMPLATES_KEPT)
def content_format_of(template: str) -> ContentFormat:
    """The form in which ``template`` takes the content of messages."""
    try:
        return "openai" if any(_content_loops(_ENVIRONMENT.parse(template))) else "string"
    except (jinja2.TemplateError, _Unreadable, RecursionError):
        return "string"


@lru_cache(TEMPLATES_KEPT)
def variables_of(template: str) -> frozenset[str]:
    """The names that ``template`` reads and does not set itself. Raises jinja2.TemplateError if it cannot be parsed."""
    return frozenset(meta.find_undeclared_variables(_ENVIRONMENT.parse(template)))


@lru_cache(TEMPLATES_KEPT)
def takes_later_systems(template: str) -> bool:
    """Whether ``template`` renders a system message that is not the first.

    Source: ``_detect_merge_inline_system`` of vLLM 0.32.0 (``vllm/entrypoints/anthropic/serving.py``). As there, the
    jinja environment lacks what transformers adds for templates (``raise_exception``, ``strftime_now``,
    ``generation``). So a template that uses one of these here counts as one that refuses.
    """
    roles = ("system", "user", "system", "user")
    try:
        _PLAIN.from_string(template).render(
            messages=[{"role": role, "content": "t"} for role in roles], add_generation_prompt=False
        )
    except Exception:  # vLLM would not start with a template that raises anything but a TemplateError
        return False
    return True


def supports_developer(template: str) -> bool:
    """Whether ``template`` knows the developer role: it has the word as a string."""
    return '"developer"' in template or "'developer'" in template


def _content_loops(root: nodes.Template) -> Iterator[str]:
    """The variable of each loop over a message's content, in document order."""
    messages = _message_names(root)
    inside, bound = _macro_loops(root, messages)
    for loop in root.find_all(nodes.For):
        over = loop.iter.name if isinstance(loop.iter, nodes.Name) else None
        if (
            any(_reaches(loop.iter, name, "content") for name in messages)
            or over in bound.get(id(loop), ())
            or (over == "content" and id(loop) not in inside)
        ):
            yield _named(loop.target)


def _message_names(root: nodes.Template) -> list[str]:
    """Loop variables that are a message."""
    lists = ["messages"]
    for name in lists:  # grows while it is walked
        for assign in root.find_all(nodes.Assign):
            if _reaches(assign.node, name) and _named(assign.target) not in lists:
                lists.append(_named(assign.target))
    loops = root.find_all(nodes.For)
    return [_named(loop.target) for loop in loops if any(_reaches(loop.iter, name) for name in lists)]


def _macro_loops(root: nodes.Template, messages: list[str]) -> tuple[set[int], dict[int, set[str]]]:
    """Loops inside macros over a parameter that some call passes a message's content to."""
    inside: set[int] = set()
    bound: dict[int, set[str]] = {}
    for macro in root.find_all(nodes.Macro):
        parameters = [argument.name for argument in macro.args]
        given: set[str] = set()
        for call in root.find_all(nodes.Call):
            if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
                continue
            named = {keyword.key: keyword.value for keyword in call.kwargs}
            for parameter, value in [*zip(parameters, call.args, strict=False), *named.items()]:
                if parameter in parameters and any(_reaches(value, name, "content") for name in messages):
                    given.add(parameter)
        for loop in macro.find_all(nodes.For):
            inside.add(id(loop))
            if given:
                bound[id(loop)] = given
    return inside, bound


def _named(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _Unreadable
    return target.name


def _reaches(node: nodes.Node, name: str, key: str | None = None) -> bool:
    """Whether ``node`` is the variable ``name`` (or its ``key``), perhaps filtered, tested or sliced."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return node.node is not None and _reaches(node.node, name, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _reaches(node.node, name, key)
    if key is None:
        return _is_variable(node, name)
    if isinstance(node, nodes.Getitem):
        return _is_variable(node.node, name) and isinstance(node.arg, nodes.Const) and node.arg.value == key
    return isinstance(node, nodes.Getattr) and _is_variable(node.node, name) and node.attr == key


def _is_variable(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
