from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils import chat_template_utils

from gateway.tokens.quicken import quicken
from tests.support.examples import examples

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
"""Templates of all that is quickened, in all places where it is written otherwise, and of what is not."""


def outcome(compiled: Any, messages: list[dict[str, Any]]) -> str:
    """The text, without the addresses of what is printed as an object, and the error that ends it."""
    blocks = []
    try:
        for block in compiled.generate(messages=messages):
            blocks.append(block)  # noqa: PERF402 - what came before an error counts
    except Exception as error:  # a template can make anything raise
        blocks.append(f"{type(error).__name__}: {error}")
    return re.sub(r" at 0x[0-9a-f]+", "", "".join(blocks))


def both(template: str) -> tuple[jinja2.Template, jinja2.Template]:
    """Compiled as ever, and quickened."""
    quick = quicken(template)
    assert quick is not None
    return slowly(template), quick


@lru_cache
def slowly(template: str) -> Any:
    plain: Any = chat_template_utils._cached_compile_jinja_template
    return getattr(plain, "__wrapped__", plain)(template)


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    """Templates are compiled again: what was quickened stays so, for as long as it is kept."""
    yield
    quicken.cache_clear()


@pytest.mark.parametrize("template", TEMPLATES)
@examples(50)
@given(messages=MESSAGES)
def test_what_is_rendered_stays_what_it_is(template: str, messages: list[dict[str, Any]]) -> None:
    slow, quick = both(template)
    assert outcome(quick, messages) == outcome(slow, messages)


@examples(60)
@given(MADE, MESSAGES)
def test_every_template_renders_what_it_did(template: str, messages: list[dict[str, Any]]) -> None:
    slow, quick = both(template)
    assert outcome(quick, messages) == outcome(slow, messages)


def test_what_a_loop_goes_through_may_fail() -> None:
    """The sandbox takes an attribute that is missing in there for one that the loop misses."""
    slow, quick = both("{% for m in messages %}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{% endfor %}")

    class Failing(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield {}
            raise AttributeError

    assert outcome(quick, Failing()) == outcome(slow, Failing())


def test_the_short_way_is_taken() -> None:
    template = (
        "{% for m in messages %}{{ m.role }}{{ m['role'] }}{{ loop.first }}{% if m.absent %}{% endif %}{% endfor %}"
    )
    compiled = quicken(template)
    assert compiled is not None

    def fail(*given: Any) -> Any:
        raise AssertionError(given)

    for whole_way in ("getattr", "getitem"):
        setattr(compiled.environment, whole_way, fail)
    assert compiled.render(messages=[{"role": "a"}]) == "aaTrue"


def test_jinjas_code_is_not_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jinja2.compiler.CodeGenerator.visit_Getattr", None)
    assert quicken("{{ messages.role }}{# its own #}") is None


def test_it_needs_nothing_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(chat_template_utils, "_compile_jinja_template")
    assert quicken("{{ messages }}") is None
