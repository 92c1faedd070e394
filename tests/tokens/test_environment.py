"""Templates render in our environment as in that of the installed ``transformers``."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment

from gateway.core.clock import ManualClock
from gateway.tokens.environment import ChatEnvironment
from tests.support.examples import examples

OURS = ChatEnvironment()

TEMPLATES = [
    "{% for m in messages %}{{ m.role }}|{{ m['role'] }}|{{ m.absent }}|{{ m.absent is defined }}\n{% endfor %}",
    "{% for m in messages %}{{ m.items() | list }}{{ m.keys() | list }}{{ m.get('role') }}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}{{ ns.no }}",
    "{{ messages[0].content.text }}{{ messages[0].content[0].text }}{{ messages | length }}{{ 'a'.upper() }}",
    "{{ messages[0].__class__.__mro__ }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{{ messages[0].absent.deeper }}",
    "{{ messages[0]['items'] }}{{ messages[0].items }}",
    "{{ messages[0].role.format(1) }}{{ messages[0]._private }}",
    "{% for m in messages %}{{ loop.first }}{{ m.content }}{% endfor %}{{ raise_exception(messages[0].role) }}",
    "{{ messages | tojson }}|{{ messages | tojson(indent=2) }}|{{ messages | tojson(separators=(',', ':')) }}",
    "{{ messages | tojson(ensure_ascii=true) }}|{{ messages | tojson(sort_keys=true, indent='--') }}|{{ no | tojson }}",
    "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% elif not m %}{% continue %}{% endif %}x{% endfor %}",
    "{% for m in messages %}{% set x = 1 %}{% generation %}{{ x }}{% set x = 2 %}{{ m }}{% endgeneration %}{{ x }}"
    "{%- endfor %}",
    "  {% if messages %}\n  a\n  {% endif %}\n{{ '<&>' }}{{ '<&>' | safe }}{{ '<&>' | e }}\n\n",
    "{{ dict(a=1) }}{{ dict.fromkeys([1], 2) }}{{ dict.mro is defined }}{{ dict is callable }}",
    "{{ namespace(_a=1) }}",
    "{% set ns = namespace(a=1) %}{{ ns.a.real }}{% set ns._b = 1 %}",
    "{% set ns = namespace({'self': 1}, b='{0.__class__}') %}{{ ns.self }}{{ ns.__class__ }}{{ ns.b.format(1) }}",
    "{% set ns = namespace(f='{0.__class__}'.format) %}{{ ns.f(1) }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].pop('role') }}{{ messages[0].setdefault('a', 1) }}",
    "{{ messages[0][['unhashable']] }}{{ messages[0][0] }}{{ messages[9] }}",
    "{{ 'a,b'.split(',') | map('upper') | join('-') }}{{ 'x'.join(['a', 'b']) }}{{ 'abc'[1:] }}{{ ' a '.strip() }}",
    "{% macro shown(m) %}{{ m.role }}{{ caller() }}{% endmacro %}{% call shown(messages[0]) %}c{% endcall %}",
    "{% for m in messages %}{{ loop.cycle('a', 'b') }}{{ loop.previtem.role }}{{ loop.changed(m) }}{% endfor %}",
    "{% for m in messages recursive %}{{ m.role }}{% if m.content is string %}{{ loop([]) }}{% endif %}{% endfor %}",
    "{{ range(3) | list }}{{ cycler('a').next() }}{{ joiner('x')() }}{% for i in range(100001) %}{% endfor %}",
    "{{ strftime_now.__globals__ }}",
    "{{ no.deeper }}",
    "{% filter upper %}{{ messages[0].role }}{% endfilter %}{% set x %}{{ messages }}{% endset %}{{ x | length }}",
]
MESSAGES = st.lists(
    st.dictionaries(
        st.sampled_from(["role", "content", "items", "_private", "update", "__class__"]),
        st.none() | st.text(max_size=4) | st.lists(st.dictionaries(st.just("text"), st.text(max_size=3)), max_size=2),
        max_size=4,
    ),
    min_size=1,
    max_size=4,
)


ATTRIBUTES = ["role", "content", "absent", "items", "format", "strip", "first", "index0", "last", "length", "_private"]
MODIFIERS = [
    "{0}",
    "not {0}",
    "{0} is defined",
    "{0} is not none",
    "{0} is string",
    "{0} is mapping",
    "{0} is sameas {0}",
    "{0} | string",
    "{0} | default('d')",
    "{0} | length",
    "{0} | list",
    "{0}[0]",
    "{0}.deeper",
    "{0}.text.upper()",
    "({0})['text']",
]
PAIRS = ["{0} and {1}", "{0} or {1}", "{0} if {1} else {0}", "{0} if {1}", "{0} == {1}", "{0} ~ {1}", "{0} + {1}"]
SUBJECTS = ["m", "loop", "ns", "text", "nothing", "made"]
LOOK_UPS = st.builds("{}.{}".format, st.sampled_from(SUBJECTS), st.sampled_from(ATTRIBUTES)) | st.builds(
    "{}['{}']".format, st.sampled_from(SUBJECTS), st.sampled_from(ATTRIBUTES)
)
EXPRESSIONS = st.recursive(
    LOOK_UPS,
    lambda inner: (
        st.builds(lambda form, one: form.format(f"({one})"), st.sampled_from(MODIFIERS), inner)
        | st.builds(
            lambda form, one, other: form.format(f"({one})", f"({other})"), st.sampled_from(PAIRS), inner, inner
        )
    ),
    max_leaves=6,
)
PLACES = [
    "{{{{ ({0}) }}}}",
    "{{% if ({0}) %}}yes{{% elif ({1}) %}}no{{% else %}}else{{% endif %}}",
    "{{% for one in ({0}) or [] %}}{{{{ one.text }}}}{{{{ loop.first }}}}{{% endfor %}}",
    "{{% for one in messages if ({0}) %}}{{{{ one['role'] }}}}{{{{ loop.last }}}}{{% endfor %}}",
    "{{% set kept = ({0}) %}}{{{{ kept }}}}{{{{ kept.role }}}}",
    "{{% macro shown(m) %}}{{{{ ({0}) }}}}{{% endmacro %}}{{{{ shown({1}) }}}}",
    "{{{{ messages | selectattr('role') | map(attribute='content') | list }}}}",
]
WITH_ALL = (
    "{{% set ns = namespace(content=none, role=0, items='i') %}}{{% set text = 'some text' %}}"
    "{{% for m in messages %}}{{% set made = {{'role': nothing, 'content': m}} %}}{0}"
    "{{% set ns.content = m.content %}}{{% endfor %}}"
)
MADE = st.lists(
    st.builds(lambda place, one, other: place.format(one, other), st.sampled_from(PLACES), EXPRESSIONS, EXPRESSIONS),
    min_size=1,
    max_size=4,
).map(lambda places: WITH_ALL.format("|".join(places)))
"""Templates of all that is looked up in a short way, in all places where a look-up stands, and of what is not."""


def outcome(compiled: Any, messages: list[dict[str, Any]]) -> str:
    """The text, without the addresses of what is printed as an object and the names of its class, and the error that
    ends it."""
    blocks = []
    try:
        for block in compiled.generate(messages=messages):
            blocks.append(block)  # noqa: PERF402 - what came before an error counts
    except Exception as error:  # a template can make anything raise
        blocks.append(f"{type(error).__name__}: {error}")
    return re.sub(r" at 0x[0-9a-f]+|[a-z_.]*\b(Template|Chat)(?=Namespace|Dict)", "", "".join(blocks))


def both(template: str) -> tuple[Any, Any]:
    """Compiled by the library and by us."""
    return theirs(template), ours(template)


@lru_cache
def theirs(template: str) -> Any:
    # Not imported with this file: the import takes as long as that of all other tests.
    library: Any = importlib.import_module("transformers.utils.chat_template_utils")
    return library._cached_compile_jinja_template(template)


@lru_cache
def ours(template: str) -> Any:
    return OURS.from_string(template)


@pytest.mark.parametrize("template", TEMPLATES)
@examples(50)
@given(messages=MESSAGES)
def test_what_templates_do(template: str, messages: list[dict[str, Any]]) -> None:
    library, own = both(template)
    assert outcome(own, messages) == outcome(library, messages)


@examples(60)
@given(MADE, MESSAGES)
def test_every_look_up(template: str, messages: list[dict[str, Any]]) -> None:
    library, own = both(template)
    assert outcome(own, messages) == outcome(library, messages)


def test_what_a_loop_goes_through_may_fail() -> None:
    """The sandbox takes an attribute that is missing in there for one that the loop misses."""
    library, own = both("{% for m in messages %}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{% endfor %}")

    class Failing(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield {}
            raise AttributeError

    assert outcome(own, Failing()) == outcome(library, Failing())


@pytest.mark.parametrize("compiled", [theirs, ours])
def test_no_loop_is_left_from_inside_a_generation(compiled: Callable[[str], Any]) -> None:
    """Its body is a function of its own."""
    with pytest.raises(SyntaxError, match="outside loop"):
        compiled("{% for m in messages %}{% generation %}{% break %}{% endgeneration %}{% endfor %}")


def test_a_templates_own_words_are_the_librarys() -> None:
    library = theirs("").environment
    assert library.globals.keys() == OURS.globals.keys()
    assert library.filters.keys() == OURS.filters.keys()
    assert library.tests == OURS.tests
    for option in ("trim_blocks", "lstrip_blocks", "keep_trailing_newline", "autoescape", "undefined", "finalize"):
        assert getattr(library, option) == getattr(OURS, option)


def test_the_date_is_the_clocks() -> None:
    environment = ChatEnvironment(ManualClock(epoch=1_700_049_600))  # noon, so that it is that day in most zones
    assert environment.from_string("{{ strftime_now('%d %b %Y') }}").render() == "15 Nov 2023"


def test_the_sandbox_is_not_asked_for_what_a_type_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = OURS.from_string(
        "{% set ns = namespace(n=1) %}{% for m in messages %}{{ m.role.upper() }}{{ m['role'] }}{{ loop.first }}"
        "{{ ns.n }}{% if m.absent or m['absent'] %}{% endif %}{% endfor %}"
    )

    def fail(*given: Any) -> Any:
        raise AssertionError(given)

    for asked in ("getattr", "getitem", "is_safe_callable"):
        monkeypatch.setattr(SandboxedEnvironment, asked, fail)
    monkeypatch.setattr(ImmutableSandboxedEnvironment, "is_safe_attribute", fail)
    with pytest.raises(AssertionError):
        compiled.render(messages=[{"role": "a"}])  # a namespace is made by a call that is asked about
    monkeypatch.setattr(SandboxedEnvironment, "is_safe_callable", lambda *given: True)
    assert compiled.render(messages=[{"role": "a"}]) == "AaTrue1"


def test_a_context_needs_no_more_than_what_a_rendering_gives_it() -> None:
    """``Renderer`` makes it itself: jinja's own way through ``new_context`` adds only what imported templates read."""
    compiled = OURS.from_string("{% block one %}{{ messages }}{% endblock %}{{ raise_exception }}")
    given = {"messages": [], "tools": None}
    ours = vars(Context(OURS, {**compiled.globals, **given}, compiled.name, compiled.blocks))
    theirs = vars(compiled.new_context(given))
    assert theirs.pop("globals_keys") == set(compiled.globals)
    assert ours.pop("globals_keys") == set()
    assert vars(ours.pop("eval_ctx")) == vars(theirs.pop("eval_ctx"))
    assert ours == theirs
