from __future__ import annotations

import pytest

from gateway.tokens.environment import ChatEnvironment
from gateway.tokens.message_loop import split_loop
from simulator.template import CHATML
from tests.tokens.family_chats import FAMILY_TEMPLATES

AHEAD = {
    "gemma": 0,
    "gemma3": 0,
    "glm4moe": 0,
    "llama3_1": 0,
    "llama3_2": 0,
    "llava_next": 0,
    "phi3": 0,
    "qwen2_5": 1,
    "qwen3": 1,
}
"""The families whose loop can begin behind known messages. The others' loops set a namespace, or break."""

LOOP = "{% for message in messages %}%s{% endfor %}"


def ahead(source: str) -> int | None:
    split = split_loop(ChatEnvironment(), source)
    return None if split is None else split.ahead


@pytest.mark.parametrize("family", FAMILY_TEMPLATES)
def test_families(family: str) -> None:
    assert ahead(FAMILY_TEMPLATES[family]) == AHEAD.get(family)


def test_our_own_template() -> None:
    assert ahead(CHATML) == 0


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("{{ message.content }}", 0),
        ("{% set x = message.content|trim %}{{ x }}{% if loop.first %}{{ bos }}{% endif %}", 0),
        ("{{ loop.index0 }}{{ loop.index }}", 0),
        ("{% if not loop.last %},{% endif %}", 1),
        ("{{ messages[loop.index0 - 2].role }}{{ messages[loop.index0].role }}", 0),
        ("{{ messages[loop.index0 + 2].role }}", 2),
        ("{% for part in message.content %}{{ loop.length }}{{ loop.nextitem }}{% endfor %}", 0),
        ("{% if message.role == 'x' %}{{ raise_exception('no') }}{% else %}{% continue %}{% endif %}", 0),
        ("{% if loop.index0 > last %}{{ message.content.strip() }}{% endif %}", 0),
    ],
)
def test_what_a_loop_may_read(body: str, wanted: int) -> None:
    assert ahead(LOOP.replace("%s", body)) == wanted


@pytest.mark.parametrize(
    "body",
    [
        "{{ messages|length }}",
        "{{ messages[-1].role }}",
        "{{ messages[0].role }}",
        "{{ messages[loop.index0 + x].role }}",
        "{{ messages[loop.index].role }}",
        "{{ messages[loop.index0 - 1.5].role }}",
        "{{ messages[1:] }}",
        "{% for one in messages %}{{ one }}{% endfor %}",
        "{% set messages = [] %}",
        "{{ loop.length }}",
        "{{ loop.revindex }}",
        "{{ loop.nextitem }}",
        "{{ loop.previtem }}",
        "{{ loop.cycle(1, 2) }}",
        "{{ loop.changed(1) }}",
        "{{ loop }}",
        "{% set loop = 1 %}",
        "{% set ns.x = 1 %}",
        "{% set other = ns %}{% set other.x = 1 %}",
        "{% set own = namespace(x=1) %}{{ own.x }}",
        "{% break %}",
        "{% for part in message.content %}{% break %}{% endfor %}",
        "{% for part in message.content %}{% else %}{{ loop.last }}{% endfor %}",
        "{% for part in message.content recursive %}{{ loop(part) }}{% endfor %}",
        "{{ strftime_now('%d') }}",
        "{{ lipsum() }}",
        "{{ [1, 2]|random }}",
        "{{ other(1) }}",
        "{% macro own() %}{% endmacro %}",
        "{% filter trim %}a{% endfilter %}",
        "{% generation %}{{ message.content }}{% endgeneration %}",
        "{% if loop.index0 > message.limit %}x{% endif %}",
        "{% set n = message.limit %}{% if loop.index0 > n %}x{% endif %}",
        "{{ kvgate_from }}",
        "{% set kvgate_to = 1 %}",
    ],
)
def test_what_a_loop_may_not(body: str) -> None:
    assert ahead(LOOP.replace("%s", body)) is None


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content }}",
        "{% if messages %}{% for message in messages %}{{ message }}{% endfor %}{% endif %}",
        "{% for message in messages[1:] %}{{ message }}{% endfor %}",
        "{% for message in messages if message.role %}{{ message }}{% endfor %}",
        "{% for message in messages %}{{ message }}{% else %}none{% endfor %}",
        "{% for message in messages recursive %}{{ message }}{% endfor %}",
        "{% set range = 3 %}{% for message in messages %}{{ range }}{% endfor %}",
        "{% macro range() %}{% endmacro %}{% for message in messages %}{{ range(1) }}{% endfor %}",
        "{% for message in messages %}",
        "{{ " + "(" * 2000 + ")" * 2000 + " }}",
    ],
)
def test_other_templates(source: str) -> None:
    assert ahead(source) is None


@pytest.mark.parametrize(
    ("macro", "wanted"),
    [
        (
            "{% macro text(x) %}{% for one in x %}{{ one }}{{ loop.last }}{% endfor %}{% endmacro %}",
            0,
        ),
        ("{% macro text(x, y=1) %}{{ x }}{{ y }}{% endmacro %}", 0),
        ("{% macro text(x, y=z) %}{{ x }}{{ y }}{% endmacro %}", None),
        ("{% macro text(x) %}{{ messages }}{% endmacro %}", None),
        ("{% macro text(x) %}{{ strftime_now('%d') }}{% endmacro %}", None),
        ("{% macro text(x) %}{% set x.y = 1 %}{% endmacro %}", None),
        ("{% macro text(x) %}{{ x }}{% endmacro %}{% set text = 1 %}", None),
        ("{% macro text(x) %}{{ x }}{% endmacro %}{% if y %}{% macro text(x) %}{{ y }}{% endmacro %}{% endif %}", None),
        ("{% macro other(x) %}{{ x }}{% endmacro %}{% macro text(x) %}{{ other(x) }}{% endmacro %}", None),
    ],
)
def test_macros(macro: str, wanted: int | None) -> None:
    assert ahead(macro + LOOP.replace("%s", "{{ text(message.content) }}")) == wanted
