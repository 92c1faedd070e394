from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import pytest

from gateway.config.decode import decode
from gateway.config.document import read_text
from gateway.errors import ConfigError


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Inner:
    number: int = 1

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("number must be at least 0")
        if self.number == 13:
            raise ValueError("unlucky")


@dataclass(frozen=True, slots=True)
class Outer:
    text: str
    count: int = 0
    ratio: float = 0.5
    flag: bool = False
    mode: Literal["a", "b", 3] = "a"
    colour: Colour = Colour.RED
    maybe: str | None = None
    either: str | tuple[str, ...] = ""
    words: tuple[str, ...] = ()
    listed: list[int] = field(default_factory=list)
    several: Sequence[float] = ()
    table: Mapping[str, int] = field(default_factory=dict)
    free: Mapping[str, Any] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)
    inners: tuple[Inner, ...] = ()
    secret: str | None = field(default=None, repr=False)
    hidden: int = field(default=7, metadata={"key": False})


def outer(text: str, **environ: str) -> Outer:
    value, origin = read_text(text, "f.yaml", environ)
    return decode(Outer, value, (), origin)


def error(text: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        outer(text, **environ)
    return caught.value.message


def test_every_type() -> None:
    got = outer(
        "text: t\ncount: 3\nratio: 2\nflag: true\nmode: 3\ncolour: blue\nmaybe: m\neither: [x, y]\nwords: [p, q]\n"
        "listed: [1]\nseveral: [1, 2.5]\ntable: {a: 1}\nfree: {a: [1, {b: null}]}\ninner: {number: 2}\n"
        "inners: [{}, {number: 5}]\nsecret: s\n"
    )
    assert got == Outer(
        text="t",
        count=3,
        ratio=2.0,
        flag=True,
        mode=3,
        colour=Colour.BLUE,
        maybe="m",
        either=("x", "y"),
        words=("p", "q"),
        listed=[1],
        several=(1.0, 2.5),
        table={"a": 1},
        free={"a": [1, {"b": None}]},
        inner=Inner(2),
        inners=(Inner(), Inner(5)),
        secret="s",
    )
    assert type(got.ratio) is float
    assert type(got.colour) is Colour


def test_defaults_and_null_where_it_is_allowed() -> None:
    assert outer("text: t\nmaybe: null\neither: x") == Outer(text="t", either="x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text: t\ncont: 1", "f.yaml:2: cont: unknown key; did you mean 'count'? Allowed: colour, count, either, flag"),
        ("text: t\ninner:\n  zzz: 1", "f.yaml:3: inner.zzz: unknown key. Allowed: number"),
        ("text: t\nhidden: 1", "f.yaml:2: hidden: unknown key"),
        ("count: 1", "f.yaml:1: text: this key is required"),
        ("[]", "f.yaml:1: expected a mapping, found a list"),
        ("text: 12", "f.yaml:1: text: expected a string, found the number 12; put it in quotes"),
        ("text: true", "text: expected a string, found the boolean true; put it in quotes"),
        ("text:", "text: expected a string, found nothing; leave the key out for its default"),
        ("text: [t]", "text: expected a string, found a list"),
        ("text: {t: u}", "text: expected a string, found a mapping"),
        ("text: t\ncount: true", "f.yaml:2: count: expected an integer, found the boolean true"),
        ("text: t\ncount: 1.0", "count: expected an integer, found the number 1.0"),
        ("text: t\ncount: '1'", "count: expected an integer, found the string '1'"),
        ("text: t\nratio: high", "ratio: expected a number, found the string 'high'"),
        ("text: t\nratio: true", "ratio: expected a number, found the boolean true"),
        ("text: t\nratio: .inf", "ratio: expected a finite number"),
        ("text: t\nratio: .nan", "ratio: expected a finite number"),
        ("text: t\nratio: 1" + "0" * 400, "ratio: expected a finite number"),
        ("text: t\nflag: yes", "flag: expected true or false, found the string 'yes'"),
        ("text: t\nflag: 1", "flag: expected true or false, found the number 1"),
        ("text: t\nmode: c", "mode: the string 'c' is not one of these. Allowed: 3, a, b"),
        ("text: t\nmode: '3'", "mode: the string '3' is not one of these"),
        ("text: t\nmode: true", "mode: the boolean true is not one of these"),
        (
            "text: t\ncolour: rde",
            "colour: the string 'rde' is not one of these; did you mean 'red'? Allowed: blue, red",
        ),
        ("text: t\nwords: a", "words: expected a list, found the string 'a'"),
        ("text: t\nwords: [a, 1]", "words[1]: expected a string, found the number 1; put it in quotes"),
        ("text: t\nwords:\n- a\n- b: c", "f.yaml:4: words[1]: expected a string, found a mapping"),
        ("text: t\neither: 1", "either: expected a string or a list, found the number 1; put it in quotes"),
        ("text: t\neither: [1]", "either[0]: expected a string, found the number 1"),
        ("text: t\ntable: []", "table: expected a mapping, found a list"),
        ("text: t\ntable: {a: b}", "table.a: expected an integer, found the string 'b'"),
        ("text: t\ninner:", "f.yaml:2: inner: expected a mapping, found nothing; leave the key out for its default"),
        ("text: t\ninners:\n- {}\n- number: x", "f.yaml:4: inners[1].number: expected an integer"),
        ("text: " + "t" * 99 + "\ncount: " + "c" * 99, "found the string 'ccccc"),
    ],
)
def test_nothing_is_repaired(text, message) -> None:
    assert message in error(text)


def test_a_long_value_is_cut() -> None:
    assert len(error("text: t\ncount: " + "c" * 999)) < 150


def test_a_range_error_has_the_line_of_the_key_it_begins_with() -> None:
    assert error("text: t\ninner:\n\n  number: -1") == "f.yaml:4: inner: number must be at least 0"
    assert error("text: t\ninner:\n\n  number: 13") == "f.yaml:2: inner: unlucky"


def test_what_the_environment_gives_is_read_as_what_is_asked_for() -> None:
    got = outer("text: ${T}\ncount: ${C}\nratio: ${R}\nflag: ${F}\nlisted: ['${C}']", T="1", C="42", R="7", F="true")
    assert (got.text, got.count, got.ratio, got.flag, got.listed) == ("1", 42, 7.0, True, [42])


def test_a_wrong_value_of_the_environments_is_named_by_its_reference() -> None:
    for key, kind in (("count", "an integer"), ("flag", "true or false"), ("ratio", "a number")):
        message = error(f"text: t\n{key}: ${{V}}", V="s3cret")
        assert message == f"f.yaml:2: {key}: expected {kind}, found the string that ${{V}} stands for"
    assert "s3cret" not in error("text: t\ncolour: ${V}", V="s3cret")
    assert "s3cret" not in error("text: t\ninners: ['${V}']", V="s3cret")


def test_a_secret_is_in_no_error() -> None:
    assert error("text: t\nsecret: 123456") == (
        "f.yaml:2: secret: expected a string, found a number (not shown); put it in quotes"
    )


def test_a_type_that_no_yaml_can_give() -> None:
    @dataclass
    class Odd:
        pair: tuple[int, int] = (1, 2)

    value, origin = read_text("pair: [1, 2]", "f.yaml", {})
    with pytest.raises(TypeError, match="cannot be written in a configuration"):
        decode(Odd, value, (), origin)
