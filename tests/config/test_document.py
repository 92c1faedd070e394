from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import document
from gateway.config.document import read, read_text
from gateway.errors import ConfigError
from tests.support.examples import examples


def value(text, **environ):
    return read_text(text, "f.yaml", environ)[0]


def error(text, **environ) -> str:
    with pytest.raises(ConfigError) as caught:
        read_text(text, "f.yaml", environ)
    return caught.value.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("~", None),
        ("", None),
        ("null", None),
        ("12", 12),
        ("-3", -3),
        ("2_000_000", 2_000_000),
        ("0x1F", 31),
        ("0o17", 15),
        ("010", 10),
        ("1e-3", 0.001),
        ("79.2e-6", 79.2e-6),
        (".5", 0.5),
        ("1.", 1.0),
        (".inf", float("inf")),
        ("-.Inf", float("-inf")),
        ("12:30:45", "12:30:45"),
        ("2026-01-01", "2026-01-01"),
        ("1.2.3", "1.2.3"),
        ("'12'", "12"),
        ('"true"', "true"),
        ("!!str 12", "12"),
        ("=", "="),
        ("<<", "<<"),
    ],
)
def test_scalars_are_read_by_the_core_schema(text, expected) -> None:
    assert value(f"a: {text}")["a"] == expected
    assert type(value(f"a: {text}")["a"]) is type(expected)


def test_not_a_number() -> None:
    assert value("a: .nan")["a"] != value("a: .nan")["a"]


def test_every_value_has_its_line() -> None:
    text = "# c\na:\n  b: 1\n  c:\n  - x\n  - {d: 2,\n     e: 3}\nf: >\n  folded\n"
    _, origin = read_text(text, "f.yaml", {})
    assert origin.lines == {
        (): 2,
        ("a",): 2,
        ("a", "b"): 3,
        ("a", "c"): 4,
        ("a", "c", 0): 5,
        ("a", "c", 1): 6,
        ("a", "c", 1, "d"): 6,
        ("a", "c", 1, "e"): 7,
        ("f",): 8,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: a: this key is given twice, first on line 1"),
        ("a:\n- b: 1\n  c: 2\n  b: 3\n", "f.yaml:4: a[0].b: this key is given twice, first on line 2"),
        ("1: a\n", "f.yaml:1: a key must be a string, found '1'; put it in quotes"),
        ("a:\n  true: b\n", "f.yaml:2: a: a key must be a string, found 'true'; put it in quotes"),
        ("a:\n  ? [b]\n  : c\n", "f.yaml:2: a: a key must be a string, found a list or mapping; put it in quotes"),
        ("a: !!python/object/apply:os.system [id]\n", "f.yaml:1: a: the tag 'tag:yaml.org,2002:python/object"),
        ("a: !mine 1\n", "f.yaml:1: a: the tag '!mine' is not allowed"),
        ("a: !!timestamp 2026-01-01\n", "the tag 'tag:yaml.org,2002:timestamp' is not allowed"),
        ("a: !!int x\n", "f.yaml:1: a: this cannot be read as int"),
        ("a: !!bool yes\n", "f.yaml:1: a: this cannot be read as bool"),
        (f"a: 1{'0' * 5000}\n", "f.yaml:1: a: this cannot be read as int"),
        ("a: 1\n b: 2\n", "f.yaml:2: not YAML: mapping values are not allowed here"),
        ("a: [1, 2\nb: 3\n", "f.yaml:2: not YAML: "),
        ("a: 'b\n", "not YAML: while scanning a quoted scalar"),
        ("a: *b\n", "f.yaml:1: not YAML: found undefined alias 'b'"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: not YAML: expected a single document"),
        ("\tb: 1\n", "f.yaml:1: not YAML: "),
        ("a: 1\nb: \x00\n", "f.yaml:2: not YAML: the character "),
        ("a: {<<: 1}\n", "f.yaml:1: a: << merges mappings only"),
        ("a: {<<: [1]}\n", "f.yaml:1: a: << merges mappings only"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text, message) -> None:
    assert message in error(text)


def test_a_syntax_error_does_not_quote_the_line() -> None:
    assert "sk-secret" not in error("a: 1\nkey: sk-secret: x\n")


def test_an_unquoted_reference_between_braces_gets_a_hint() -> None:
    assert "${...} must be in quotes" in error("a: {port: ${PORT}}\n", PORT="1")


def test_anchors_and_merge_keys() -> None:
    text = "base: &b {x: 1, y: 2}\nalso: *b\nmore:\n  y: 3\n  <<: *b\nmany: {<<: [*b, {y: 9, z: 8}], x: 0}\n"
    assert value(text) == {
        "base": {"x": 1, "y": 2},
        "also": {"x": 1, "y": 2},
        "more": {"x": 1, "y": 3},
        "many": {"x": 0, "y": 2, "z": 8},
    }


def test_a_merged_value_has_the_line_of_its_anchor_and_an_own_one_its_own() -> None:
    _, origin = read_text("base: &b\n  x: 1\n  y: 2\nmore:\n  y: 3\n  <<: *b\n", "f.yaml", {})
    assert origin.lines[("more", "x")] == 2
    assert origin.lines[("more", "y")] == 5


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"{c}: &{c} [{', '.join([f'*{p}'] * 9)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)),
        "a: &a {x: 1}\n"
        + "".join(
            f"{c}: &{c} {{<<: [{', '.join([f'*{p}'] * 9)}]}}\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)
        ),
    ],
    ids=["aliases", "merges"],
)
def test_a_bomb_is_bounded(text) -> None:
    assert "more than 100000 values" in error(text)


@pytest.mark.parametrize(
    "text",
    ["[" * 1200, "a: &a [*a]", "a: &a {b: *a}", "a: &a {<<: *a}", "- " * 60 + "x", "{a: " * 3000],
    ids=["brackets", "loop", "loop-map", "loop-merge", "dashes", "braces"],
)
def test_depth_is_bounded(text) -> None:
    assert "nested" in error(text)


def test_references() -> None:
    text = (
        "a: ${A}\nb: 'x-${A}-${B}'\nc: ${MISSING:-none}\nd: ${EMPTY:-none}\ne: ${EMPTY}\n"
        "f: $${A} $$5\ng: $A\nh: ${MISSING:-}\n${A}: key\n"
    )
    got, origin = read_text(text, "f.yaml", {"A": "one", "B": "two", "EMPTY": ""})
    assert got == {
        "a": "one",
        "b": "x-one-two",
        "c": "none",
        "d": "none",
        "e": "",
        "f": "${A} $5",
        "g": "$A",
        "h": "",
        "${A}": "key",
    }
    assert {path[0]: r.text for path, r in origin.references.items()} == {
        "a": "${A}",
        "b": "x-${A}-${B}",
        "c": "${MISSING:-none}",
        "d": "${EMPTY:-none}",
        "e": "${EMPTY}",
        "h": "${MISSING:-}",
    }


def test_what_comes_from_the_environment_is_text_not_yaml() -> None:
    assert value("a: ${A}", A="{b: [c]}\nd: ${A}")["a"] == "{b: [c]}\nd: ${A}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n  b: ${ABSENT}\n", "f.yaml:2: a.b: the environment has no ABSENT: set it, or write ${ABSENT:-default}"),
        ("a: ${}\n", "f.yaml:1: a: ${ begins a reference"),
        ("a: ${A-B}\n", "f.yaml:1: a: ${ begins a reference"),
        ("a: ${A\n", "f.yaml:1: a: ${ begins a reference"),
    ],
)
def test_bad_references(text, message) -> None:
    assert message in error(text)


def test_files_that_cannot_be_read(tmp_path) -> None:
    def of(path) -> str:
        with pytest.raises(ConfigError) as caught:
            read(path, {})
        return caught.value.message.removeprefix(str(tmp_path))

    (tmp_path / "latin").write_bytes(b"a: 1\nb: \xe9\n")
    (tmp_path / "large").write_bytes(b"#" * (document.MAX_BYTES + 1))
    assert of(tmp_path / "absent") == "/absent: cannot be read: No such file or directory"
    assert of(tmp_path) == ": cannot be read: Is a directory"
    assert of(tmp_path / "latin") == "/latin:2: not UTF-8: byte 0xe9"
    assert of(tmp_path / "large") == "/large: larger than 1048576 bytes"


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path) -> None:
    (tmp_path / "bom").write_bytes(b"\xef\xbb\xbfa: 1\r\n")
    assert read(tmp_path / "bom", {})[0] == {"a": 1}


@examples(150)
@given(st.text(alphabet=st.sampled_from("ab:-[]{}&*<>!|'\"#%@`?,$~ \n\t0.") | st.characters(), max_size=60))
def test_any_text_is_read_or_refused_with_the_file_named(text) -> None:
    problem = ""
    try:
        read_text(text, "f.yaml", {})
    except ConfigError as caught:
        problem = caught.message
    assert not problem or problem.startswith("f.yaml")
