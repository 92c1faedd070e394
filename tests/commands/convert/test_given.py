"""Covers: gateway/commands/convert/given.py, gateway/commands/convert/go_values.py."""

from __future__ import annotations

import pytest

from gateway.commands.convert.given import Given
from gateway.config.document import read_text
from gateway.errors import ConfigError


def given(text: str) -> Given:
    value, origin = read_text(text, "f.yaml", {})
    return Given(value, (), origin)


def test_what_is_given_is_read_by_its_type() -> None:
    it = given("{text: a, number: 1.5, integer: 3, flag: true, texts: [a, b], mapping: {a: b}, inner: {x: 1}}")
    assert (it.text("text"), it.number("number", 0), it.integer("integer", 0)) == ("a", 1.5, 3)
    assert (it.flag("flag"), it.texts("texts"), it.mapping("mapping")) == (True, ("a", "b"), {"a": "b"})
    inner = it.within("inner")
    assert inner.integer("x", 0) == 1
    inner.end()
    it.end()


def test_null_is_as_not_given() -> None:
    it = given("{a: null, b: null}")
    assert (it.text("a", "x"), it.number("b", 2), it.flag("c"), it.texts("d")) == ("x", 2, False, ())
    assert not it.has("a")
    assert it.within("a").rest() == ()


@pytest.mark.parametrize(
    ("text", "seconds"), [("60s", 60), ("1m30s", 90), ("500ms", 0.5), ("1h", 3600), ("0", 0), ("1.5s", 1.5), ("", 7)]
)
def test_durations_are_go_s(text, seconds) -> None:
    assert given(f"a: '{text}'").duration("a", 7) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "number"),
    [("1Gi", 2**30), ("'2k'", 2000), ("512Mi", 2**29), ("100", 100), ("1.5G", 1_500_000_000), ("null", 0)],
)
def test_quantities_are_kubernetes(text, number) -> None:
    assert given(f"a: {text}").quantity("a") == number


@pytest.mark.parametrize(
    ("read", "problem"),
    [
        (lambda it: it.text("number"), "number: expected a string"),
        (lambda it: it.number("text", 0), "text: expected a number"),
        (lambda it: it.number("flag", 0), "flag: expected a number"),
        (lambda it: it.number("endless", 0), "endless: expected a number"),
        (lambda it: it.number("number", 0, most=1), r"number: must be in 0\.\.1"),
        (lambda it: it.integer("number", 0), "number: expected an integer"),
        (lambda it: it.flag("text"), "text: expected true or false"),
        (lambda it: it.texts("mixed"), "mixed: expected a list of strings"),
        (lambda it: it.texts("text"), "text: expected a list"),
        (lambda it: it.mapping("mixed"), "mixed: expected a mapping of strings"),
        (lambda it: it.within("text"), "text: expected a mapping"),
        (lambda it: it.each("mixed"), r"mixed\[0\]: expected a mapping"),
        (lambda it: it.duration("text", 0), "text: expected a duration"),
        (lambda it: it.quantity("text"), "text: expected a quantity"),
        (lambda it: it.one_of("text", ("here", "there"), ""), r"text: 'hare' is none of these; did you mean 'here'\?"),
        (lambda it: it.needed("absent"), "absent: this key is required"),
        (lambda it: (it.text("text"), it.number("number", 0), it.end()), "flag: unknown key"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(read, problem) -> None:
    with pytest.raises(ConfigError, match=rf"^f\.yaml:\d+: {problem}"):
        read(given("text: hare\nnumber: 1.5\nflag: true\nendless: .inf\nmixed: [1, a]\n"))
