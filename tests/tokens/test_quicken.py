from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.exceptions import SecurityError, TemplateError
from transformers.utils import chat_template_utils
from transformers.utils.chat_template_utils import _compile_jinja_template

from gateway.tokens.quicken import _MISSING, quicken

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


def outcome(compiled: Any, messages: list[dict[str, Any]]) -> str:
    try:
        return str(compiled.render(messages=messages))
    except (TemplateError, SecurityError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    """Templates are compiled again: what was quickened stays so, for as long as it is kept."""
    yield
    quicken.cache_clear()


@pytest.mark.parametrize("template", TEMPLATES)
@settings(max_examples=50)
@given(messages=MESSAGES)
def test_what_is_rendered_stays_what_it_is(template: str, messages: list[dict[str, Any]]) -> None:
    plain = chat_template_utils._cached_compile_jinja_template
    slow = getattr(plain, "__wrapped__", plain)(template)
    quicken(template)
    assert outcome(_compile_jinja_template(template), messages) == outcome(slow, messages)


def test_the_short_way_is_taken() -> None:
    template = "{{ messages[0].role }}{# its own #}"
    environment = _compile_jinja_template(template).environment
    assert "getattr" not in vars(environment)
    quicken(template)
    assert "getattr" in vars(environment)
    assert environment.getattr({"role": _MISSING}, "role") is not None


def test_it_needs_nothing_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(chat_template_utils, "_compile_jinja_template")
    quicken("{{ messages }}")
