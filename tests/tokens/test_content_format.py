from __future__ import annotations

import jinja2
import pytest

from gateway.tokens.content_format import content_format_of, supports_developer, variables_of

STRING = [
    "{{ messages[0].content }}",
    "{% for message in messages %}{{ message.content }}{% endfor %}",
    "{% for message in messages %}{% for call in message.tool_calls %}{{ call }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for x in other.content %}{{ x }}{% endfor %}{% endfor %}",
    # a variable that is not followed
    "{% set ns.all = messages %}{% for m in messages %}{% for x in m.content %}{{ x }}{% endfor %}{% endfor %}",
    "{% for index, m in messages %}{% for x in m.content %}{{ x }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for x, y in m.content %}{{ x }}{% endfor %}{% endfor %}",
    # a macro whose parameter only has the name
    "{% macro show(content) %}{% for x in content %}{{ x }}{% endfor %}{% endmacro %}{{ show(tools) }}",
    "{% broken",
    "",
]
OPENAI = [
    "{% for message in messages %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for part in m['content'] %}{{ part.text }}{% endfor %}{% endfor %}",
    "{% for m in messages[1:] %}{% for part in m.content | list %}{{ part.text }}{% endfor %}{% endfor %}",
    "{% set rest = messages[1:] %}{% for m in rest %}{% for p in m.content %}{{ p }}{% endfor %}{% endfor %}",
    "{% set a = messages %}{% set b = a | list %}{% set messages = b %}"
    "{% for m in b %}{% for p in m.content %}{{ p }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% set content = m.content %}{% for p in content %}{{ p }}{% endfor %}{% endfor %}",
    "{% macro show(parts) %}{% for p in parts %}{{ p }}{% endfor %}{% endmacro %}"
    "{% for m in messages %}{{ show(m.content) }}{% endfor %}",
    "{% macro show(a, parts) %}{% for p in parts %}{{ p }}{% endfor %}{% endmacro %}"
    "{% for m in messages %}{{ show(1, parts=m.content) }}{% endfor %}",
    "{% for m in messages %}{% generation %}{% for p in m.content %}{{ p }}{% endfor %}{% endgeneration %}{% endfor %}",
]


@pytest.mark.parametrize("template", STRING)
def test_templates_that_want_text(template: str) -> None:
    assert content_format_of(template) == "string"


@pytest.mark.parametrize("template", OPENAI)
def test_templates_that_want_parts(template: str) -> None:
    assert content_format_of(template) == "openai"


def test_the_variables_of_a_template() -> None:
    template = "{% set own = 1 %}{% for m in messages %}{{ m }}{{ own }}{% break %}{% endfor %}{{ enable_thinking }}"
    assert variables_of(template) == {"messages", "enable_thinking"}
    with pytest.raises(jinja2.TemplateError):
        variables_of("{% broken")


def test_a_developer_role_is_known_by_its_quoted_name() -> None:
    assert supports_developer("{% if message.role == 'developer' %}")
    assert supports_developer('{% if message["role"] in ["developer"] %}')
    assert not supports_developer("{# for developers #}")
